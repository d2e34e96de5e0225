"""The pinned requirements have every extra but torch, whose builds for GPUs take gigabytes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_requirements_are_those_of_every_extra_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (named,) = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*named.split(), "torch"} == {*project["optional-dependencies"]}


def test_no_requirements_pin_what_is_of_gpus() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        pinned = re.findall(r"^([a-z0-9-]+)==", path.read_text(), re.MULTILINE)
        found = [name for name in pinned if name.startswith(("nvidia-", "cuda-", "triton"))]
        assert (path.name, found) == (path.name, [])
        assert path.name == "torch.txt" or "torch" not in pinned


def scripts() -> dict[str, str]:
    """The text of each script, with its continued lines joined."""
    paths = [*(ROOT / "scripts").iterdir(), ROOT / "deploy" / "docker" / "install.sh"]
    return {path.name: path.read_text().replace("\\\n", " ") for path in paths if path.is_file()}


def test_what_scripts_fetch_has_a_pinned_hash() -> None:
    """Go checks its modules itself, and apt the signatures of Debian."""
    installs = {
        (name, line)
        for name, text in scripts().items()
        for line in text.splitlines()
        if re.search(r"pip.* install -|pip_install -", line)
        if not re.search(r'/wheels|"\$@"$| -e \.$', line)  # of this repository
    }
    assert len(installs) > 5
    assert [one for one in installs if "--require-hashes" not in one[1]] == []
    by_others = {n for n, text in scripts().items() if re.search(r"npm install|mvn -|curl ", text)}
    assert by_others == {"azurite", "hdfs"}
    for name in by_others:
        assert re.search(r"^pinned=[0-9a-f]{64}\b", scripts()[name], re.MULTILINE), name
