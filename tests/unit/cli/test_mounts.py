"""Following a path without touching a mount."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from cachefs.cli import mounts
from cachefs.cli.mounts import is_dead, locate
from cachefs.core.errors import BadConfig
from tests.unit.core.test_mountinfo import MOUNTS


def no_links(path: str) -> str:
    raise OSError(errno.EINVAL, "no link")


def where(path: str, links: dict[str, str] | None = None, cwd: str = "/home/u") -> tuple[str, str]:
    """The mount point (or "") and the path inside it."""

    def readlink(asked: str) -> str:
        if asked in (links or {}):
            return (links or {})[asked]
        assert not asked.startswith(("/mnt/data/", "/mnt/data ")), "touched a mount"
        raise OSError(errno.EINVAL, "no link")

    place = locate(path, MOUNTS, cwd=cwd, readlink=readlink)
    return (place.mount.mountpoint, place.inside) if place.mount else ("", place.path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/mnt/data", ("/mnt/data", "")),
        ("/mnt/data/", ("/mnt/data", "")),
        ("/mnt//data/./x/y", ("/mnt/data", "x/y")),
        ("/mnt/data/x/../y", ("/mnt/data", "y")),
        ("/mnt/data/../other", ("", "/mnt/other")),
        ("/mnt/data/x/../../data/z", ("/mnt/data", "z")),
        ("/pod/vol/x", ("/pod/vol", "sub/x")),
        ("/mnt/database", ("", "/mnt/database")),
        ("/mnt/over/x", ("", "/mnt/over/x")),
        ("x", ("", "/home/u/x")),
        ("../../mnt/data/q*", ("/mnt/data", "q*")),
        ("/", ("", "/")),
        ("/../..", ("", "/")),
    ],
)
def test_locate(path: str, expected: tuple[str, str]) -> None:
    assert where(path) == expected


def test_links_outside_are_followed() -> None:
    links = {"/home/u/data": "/mnt/data", "/home/u/rel": "../u/data/x", "/a": "b", "/b": "a"}
    assert where("data/y", links) == ("/mnt/data", "y")
    assert where("rel/y", links) == ("/mnt/data", "x/y")
    assert where("/a/..", {"/a": "/mnt/data"}) == ("", "/mnt")
    with pytest.raises(BadConfig, match="symbolic links"):
        where("/a", links)


def test_a_working_directory_inside_a_mount() -> None:
    assert where("y", cwd="/mnt/data/x") == ("/mnt/data", "x/y")
    assert where(".", cwd="/mnt/data/x") == ("/mnt/data", "x")


def failing(number: int) -> object:
    def probe(path: str) -> None:
        raise OSError(number, os.strerror(number))

    return probe


def test_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_dead(str(tmp_path))
    assert is_dead("/x", failing(errno.ENOTCONN))  # type: ignore[arg-type]
    assert is_dead("/x", failing(errno.ECONNABORTED))  # type: ignore[arg-type]
    assert not is_dead("/x", failing(errno.EACCES))  # type: ignore[arg-type]


def test_a_hanging_mount_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "PROBE_S", 0.01)
    release = threading.Event()
    assert not is_dead("/x", lambda path: release.wait(30))
    release.set()
