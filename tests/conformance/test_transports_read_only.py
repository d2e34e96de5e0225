"""A mount stays read-only when its flag in the kernel is taken away: the client refuses every
change itself, on every transport."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.posix import error_of
from tests.conformance.transports import PYFUSE3, Mounted
from tests.conformance.tree import FILES

_FS_IOC_SETVERSION = 0x40087602
WRITING = (
    os.O_WRONLY,
    os.O_RDWR,
    os.O_WRONLY | os.O_RDWR,  # what ioctls open devices with
    os.O_RDWR | os.O_APPEND,
    os.O_WRONLY | os.O_TRUNC,
    os.O_RDONLY | os.O_TRUNC,
    os.O_RDWR | os.O_CREAT,
)


@pytest.fixture
def writable(mounted: Mounted) -> Iterator[Mounted]:
    """A mount of which the kernel believes that it may be written to; `d/warm` is open."""
    with (mounted.path / "d/warm").open("rb") as held:
        command = ["mount", "-i", "-o", "remount,rw", str(mounted.path)]
        subprocess.run(command, check=True)
        assert "rw" in mounted.mountinfo().split()[5].split(",")
        yield mounted
        assert held.read() == FILES["warm"], "the open file has other bytes"


@pytest.mark.parametrize("name", ["warm", "cold", "partial"])
def test_no_open_for_writing(writable: Mounted, name: str) -> None:
    """[S-read-only] The open of a file that is open already is refused as any other."""
    path = writable.path / "d" / name
    with path.open("rb") as second:
        for flags in WRITING:
            assert error_of(lambda flags=flags: os.open(path, flags)) == errno.EROFS, flags
        assert second.read(100) == FILES[name][:100]
    assert (writable.path / "d" / name).read_bytes() == FILES[name]


def test_an_open_to_append_that_does_not_write_is_a_read(writable: Mounted) -> None:
    """O_APPEND alone changes nothing, as on every read-only file system."""
    for name in ("warm", "cold"):
        fd = os.open(writable.path / "d" / name, os.O_RDONLY | os.O_APPEND)
        try:
            assert os.read(fd, 100) == FILES[name][:100]
        finally:
            os.close(fd)


def set_version(path: Path, version: int) -> None:
    """Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _FS_IOC_SETVERSION, array.array("l", [version]))
    finally:
        os.close(fd)


def test_no_other_change(writable: Mounted) -> None:
    """[S-read-only] Names, attributes and extents, of an open file and of its directory."""
    path, new = writable.path / "d/warm", writable.path / "d/new"
    attempts: list[Callable[[], object]] = [
        lambda: new.write_bytes(b"x"),
        lambda: os.truncate(path, 0),
        lambda: path.unlink(),
        lambda: new.mkdir(),
        lambda: (writable.path / "d").rmdir(),
        lambda: path.rename(new),
        lambda: os.symlink("a", new),
        lambda: os.link(path, new),
        lambda: os.utime(path),
        lambda: os.chmod(path, 0o600),
        lambda: os.chown(path, 1, 1),
        lambda: os.mkfifo(new),
        lambda: os.setxattr(path, "user.a", b"x"),
        lambda: os.removexattr(path, "user.a"),
    ]
    for number, attempt in enumerate(attempts):
        assert error_of(attempt) == errno.EROFS, f"attempt {number}"


def test_no_change_by_an_ioctl(writable: Mounted) -> None:
    changed = error_of(lambda: set_version(writable.path / "d/warm", 7))
    # libfuse answers an ioctl without asking us.
    expected = errno.EROFS if writable.transport != PYFUSE3 else errno.ENOTTY
    assert changed == expected


def test_the_cache_file_is_as_it_was(writable: Mounted) -> None:
    """What passthrough reads is the node's own file: nobody has written to it."""
    node = writable.node
    ino = node.find("d/warm")
    before = (node.cache / node.content_name(ino)).stat()
    for flags in WRITING:
        try:
            fd = os.open(writable.path / "d/warm", flags)
        except OSError:
            continue
        os.pwrite(fd, b"other", 0)
        os.close(fd)
    after = (node.cache / node.content_name(ino)).stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)
