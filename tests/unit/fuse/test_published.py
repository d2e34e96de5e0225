"""Opening published files: at once or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.fuse import published
from cachefs.fuse.file_systems import LOCAL, MEMORY, file_system_of
from cachefs.fuse.published import Published, Way, way_of

DATA = b"complete"


@pytest.fixture(params=["/dev/shm", None], ids=["tmpfs", "disk"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=request.param) as path:
        yield Path(path)


@pytest.fixture
def pub(folder: Path) -> Iterator[int]:
    """A directory with one published file, and one that nobody linked."""
    (folder / "file").write_bytes(DATA)
    (folder / "pub").mkdir()
    os.link(folder / "file", folder / "pub" / "published")
    (folder / "pub" / "alone").write_bytes(DATA)
    os.symlink("published", folder / "pub" / "link")
    fd = os.open(folder / "pub", os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_what_is_published_is_opened_without_waiting(pub: int) -> None:
    files = Published()
    opened = files.open(pub, 1, "published", len(DATA))
    assert opened is not None
    fd, device = opened
    assert os.pread(fd, 100, 0) == DATA
    assert device == os.fstat(fd).st_dev
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("name", ["absent", "alone", "link"])
def test_what_is_not_surely_published_is_not_opened(pub: int, name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert Published().open(pub, 1, name, len(DATA)) is None
    assert Published().open(pub, 1, "published", len(DATA) + 1) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tier_out_of_service_is_not_touched(pub: int) -> None:
    files = Published()
    files.in_service = False
    assert files.open(pub, 1, "published", len(DATA)) is None
    files.in_service = True
    opened = files.open(pub, 1, "published", len(DATA))
    assert opened is not None
    os.close(opened[0])
    assert files.open(-1, 2, "published", len(DATA)) is None


def test_ways() -> None:
    assert {way_of(kind) for kind in MEMORY} == {Way.MEMORY}
    assert {way_of(kind) for kind in LOCAL} == {Way.CACHED}
    assert {way_of(kind) for kind in ("fuse", "fuse.x", "nfs4", "")} == {Way.NEVER}


def test_the_file_system_of_a_descriptor_is_found_without_asking_it(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    kind = file_system_of(fd)
    os.close(fd)
    assert kind == "tmpfs" if str(folder).startswith("/dev/shm") else kind != ""
    fd = os.memfd_create("segment")
    assert file_system_of(fd) == "tmpfs"
    os.close(fd)
    reading, writing = os.pipe()
    assert file_system_of(reading) == ""
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOSYS, errno.EPERM, errno.EINVAL])
def test_a_kernel_that_would_wait_or_knows_no_openat2(
    pub: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the server opens the file."""
    monkeypatch.setattr(published, "_syscall", lambda *_: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: number)
    assert published._open_cached(pub, "published") == -1
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EMFILE)
    with pytest.raises(OSError) as caught:
        published._open_cached(pub, "published")
    assert caught.value.errno == errno.EMFILE
