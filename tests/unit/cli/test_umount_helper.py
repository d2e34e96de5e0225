"""What umount(8) passes on."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from cachefs.cli.commands.umount_helper import main, parse_arguments


@pytest.mark.parametrize(
    ("words", "lazy"),
    [([], False), (["-n", "-v"], False), (["-lr"], True), (["-f", "-t", "fuse.cachefs"], False),
     (["-N", "/proc/1/ns/mnt", "-l"], True)],
)  # fmt: skip
def test_arguments(words: list[str], lazy: bool) -> None:
    parsed = parse_arguments(["/mnt/data", *words])
    assert (parsed.place, parsed.lazy) == ("/mnt/data", lazy)


@pytest.mark.parametrize("words", [[], ["/a", "/b"], ["/a", "--all"], ["-t"]])
def test_what_is_wrong_is_refused(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse_arguments(words)


def test_what_is_no_mount_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) != 0
    assert "not a cachefs mount" in capfd.readouterr().err
