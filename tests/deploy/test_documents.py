"""docs/deploy.md: its command lines are run in an empty root, or judged where they need systemd, a
container engine or a registry; the examples of settings name settings that exist."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import pytest

from cachefs.core.settings import SETTINGS
from tests.deploy.foreground import run
from tests.deploy.promtool import ROOT, tools
from tests.deploy.units import UNITS
from tests.unit.cli.test_documented_commands import problem

PAGE: Final = ROOT / "docs" / "deploy.md"
OWN_PATHS: Final = re.compile(r"(?<![\w.])/(etc|usr|var|mnt|opt)\b")
RUN: Final = ("install ", "openssl ", "(umask ", "cp ", "promtool ", "systemd-sysusers ")
OTHER_VARIABLES: Final = {"SOURCE"}
FOR_COMPOSE: Final = re.compile(r"docker compose -f (\S+) (up -d|exec master cachefs (.*))")


def lines() -> list[str]:
    """Returns the command lines of the page, without comments."""
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("    ")]
    return [re.sub(r"\s+# .*", "", line).strip() for line in found]


def test_the_files_are_installed_as_the_page_says(tmp_path: Path) -> None:
    environment = {"PATH": f"{tools()}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    (tmp_path / "etc" / "prometheus").mkdir(parents=True)
    ran = [line for line in lines() if line.startswith(RUN)]
    assert len(ran) >= 13
    for line in ran:
        line = OWN_PATHS.sub(lambda found: f"{tmp_path}{found[0]}", line)
        line = re.sub(r"(systemd-(sysusers|tmpfiles))", rf"\1 --root={tmp_path}", line)
        done = run(["sh", "-ec", line], environment)
        assert done.returncode == 0, f"{line}: {done.stdout}"
    units = {path.name for path in (tmp_path / "etc" / "systemd" / "system").iterdir()}
    assert units == {path.name for path in UNITS.glob("*.service")}
    assert (tmp_path / "etc" / "cachefs" / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "var" / "lib" / "cachefs" / "token").stat().st_uid == 65532


def test_every_other_command_line_names_what_is_there() -> None:
    units = {path.name.removesuffix(".service") for path in UNITS.glob("*.service")}
    for line in (line for line in lines() if not line.startswith(RUN)):
        if enabled := re.fullmatch(r"systemctl enable --now (\S+)", line):
            assert re.sub("@.*", "@", enabled[1]) in units
        elif composed := FOR_COMPOSE.fullmatch(line):
            assert (ROOT / composed[1]).is_file()
            assert not composed[3] or problem(composed[3]) == ""
        else:
            assert line.startswith("python3 -m venv /opt/cachefs && "), line


@pytest.mark.parametrize(
    "file", sorted(path.relative_to(UNITS) for path in UNITS.glob("examples/**/*.env")), ids=str
)
def test_the_examples_name_settings(file: Path) -> None:
    known = {setting.env for setting in SETTINGS} | OTHER_VARIABLES
    pairs = [line.split("=", 1) for line in (UNITS / file).read_text().splitlines()]
    assert pairs
    assert {name for name, _ in pairs} <= known
    assert all(value for _, value in pairs)
