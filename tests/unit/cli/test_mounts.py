"""The mount table, and following a path without touching a mount."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from cachefs.cli import mounts
from cachefs.cli.mounts import MountTable, is_dead, locate, parse_mountinfo
from cachefs.core.errors import BadConfig

INFO = rb"""22 27 0:20 / /proc rw,nosuid - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 27 0:50 / /mnt/data ro,nosuid,nodev - fuse.cachefs s3://bucket/a\040b ro,user_id=1000,allow_other
91 27 0:50 /sub /pod/vol ro - fuse.cachefs s3://bucket ro,user_id=1000
92 27 0:51 / /mnt/with\040space\134 ro - fuse.cachefs s3://c ro,user_id=0
93 90 0:52 / /mnt/data/deep rw - tmpfs tmpfs rw
94 27 0:53 / /mnt/over ro - fuse.cachefs s3://d ro
95 27 0:54 / /mnt/over rw - tmpfs tmpfs rw
nonsense
"""
TABLE = MountTable(parse_mountinfo(INFO))


def no_links(path: str) -> str:
    raise OSError(errno.EINVAL, "no link")


def where(path: str, links: dict[str, str] | None = None, cwd: str = "/home/u") -> tuple[str, str]:
    """The mount point (or "") and the path inside it."""

    def readlink(asked: str) -> str:
        if asked in (links or {}):
            return (links or {})[asked]
        assert not asked.startswith(("/mnt/data/", "/mnt/data ")), "touched a mount"
        raise OSError(errno.EINVAL, "no link")

    place = locate(path, TABLE, cwd=cwd, readlink=readlink)
    return (place.mount.mountpoint, place.inside) if place.mount else ("", place.path)


def test_parse_mountinfo() -> None:
    assert len(parse_mountinfo(INFO)) == 8
    mount = TABLE.at("/mnt/data")
    assert mount is not None
    assert mount.is_cachefs
    assert (mount.source, mount.owner_uid, mount.device) == ("s3://bucket/a b", 1000, "0:50")
    assert TABLE.at("/mnt/with space\\") is not None
    top = TABLE.at("/mnt/over")
    assert top is not None
    assert top.fstype == "tmpfs"


def test_bind_mounts_lead_to_their_original() -> None:
    bind = TABLE.at("/pod/vol")
    assert bind is not None
    assert TABLE.original(bind).mountpoint == "/mnt/data"
    assert [m.mountpoint for m in TABLE.ours()] == ["/mnt/data", "/mnt/with space\\"]
    assert len(TABLE.of_device("0:50")) == 2
    assert [m.mountpoint for m in TABLE.below("/mnt/data")] == ["/mnt/data/deep"]


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


def test_the_real_table_has_the_root() -> None:
    assert mounts.read_mounts().at("/") is not None


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
