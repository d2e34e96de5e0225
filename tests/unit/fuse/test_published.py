"""Opening published files: at once or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.client.published import PublishedDir
from cachefs.fuse import published
from cachefs.fuse.file_systems import LOCAL, MEMORY, file_system_of
from cachefs.fuse.published import ANY_TIER, Published, Way, way_of

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
    opened = files.open([PublishedDir(0, pub)], "published", len(DATA))
    assert opened is not None
    fd, device, tier = opened
    assert tier == 0
    assert os.pread(fd, 100, 0) == DATA
    assert device == os.fstat(fd).st_dev
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("name", ["absent", "alone", "link"])
def test_what_is_not_surely_published_is_not_opened(pub: int, name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert Published().open([PublishedDir(0, pub)], name, len(DATA)) is None
    assert Published().open([PublishedDir(0, pub)], "published", len(DATA) + 1) is None
    assert len(os.listdir("/proc/self/fd")) <= before  # what earlier tests left may go meanwhile


def test_a_tier_out_of_service_is_not_touched(pub: int) -> None:
    files, here = Published(), [PublishedDir(0, pub)]
    files.changed(0, in_service=False)
    assert files.open(here, "published", len(DATA)) is None
    files.changed(0, in_service=True)
    opened = files.open(here, "published", len(DATA))
    assert opened is not None
    os.close(opened[0])
    assert files.open([], "published", len(DATA)) is None


def test_the_first_tier_that_has_a_file_and_answers_gives_it(pub: int, tmp_path: Path) -> None:
    empty = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    files = Published()
    tiers = [PublishedDir(0, empty), PublishedDir(1, pub), PublishedDir(3, pub)]
    found = []
    for out in (None, 0, 1, 3):
        if out is not None:
            files.changed(out, in_service=False)
        opened = files.open(tiers, "published", len(DATA))
        found.append(opened[2] if opened else None)
        if opened is not None:
            os.close(opened[0])
    os.close(empty)
    assert found == [1, 1, 3, None]
    assert not files.in_service(ANY_TIER)
    assert files.in_service(2)
    files.trust_all()
    assert files.in_service(ANY_TIER)


def test_another_directory_of_a_tier_is_opened_in_its_own_way(
    pub: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its descriptor has the number that the other one had."""
    files = Published()
    known = files.way(PublishedDir(0, pub))
    assert known is not Way.NEVER
    monkeypatch.setattr(published, "file_system_of", lambda _: "nfs4")
    assert files.way(PublishedDir(0, pub)) is Way.NEVER


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


def test_a_mount_elsewhere_during_the_lookup_does_not_send_an_open_to_the_server(
    pub: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives up such a lookup with EAGAIN."""
    answers = [-1, 77]
    monkeypatch.setattr(published, "_syscall", lambda *_: answers.pop(0))
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EAGAIN)
    assert published._open_cached(pub, "published") == 77
    answers = [-1, -1, 77]
    assert published._open_cached(pub, "published") == -1, "a lookup of a name that is not cached"
    assert answers == [77]


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
