"""The tier's directory on a real file system: ownership, published files, boots, eviction."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import BadConfig, InUse, NoDescriptorLeft
from cachefs.core.model import PAGE_BYTES, ContentId, NamespaceId
from tests.services.descriptors import descriptors_left
from worker.store import directory, filesystem
from worker.store.changes import DropFile, PutFile, TouchFile
from worker.store.directory import TierDirectory
from worker.store.index import Change
from worker.store.records import FileRecord
from worker.store.removal import LEASE_LOOKS, drop, evict
from worker.store.writer import Writer

BOOT, OTHER_BOOT = b"a" * 16, b"b" * 16
SIZE = 100_000


def name_of(number: int) -> str:
    return ContentId(NamespaceId(b"n" * 16), number, 0, number * 0x9E3779B97F4A7C15 % 2**64).name


class Shelf:
    """A tier and its writer."""

    def __init__(self, path: Path, boot: bytes = BOOT) -> None:
        self.tier = TierDirectory.take(str(path), boot)
        self.writer = Writer(self.tier.index)

    def put(self, number: int, data: bytes = b"x" * SIZE, epoch: int = 1) -> str:
        name = name_of(number)
        fd = self.tier.create(name, len(data))
        os.pwrite(fd, data, 0)
        allocated = filesystem.allocated_bytes(fd)
        os.close(fd)
        record = FileRecord(len(data), "e", epoch, allocated, True, 5)
        self.writer.write([PutFile(bytes.fromhex(name), record, {0: 1})])
        self.tier.publish(name)
        return name

    def published(self, name: str) -> int | None:
        return self.tier.open_published(name, SIZE)

    def close(self) -> None:
        self.writer.close()
        self.tier.close()


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    before = len(os.listdir("/proc/self/fd"))
    shelf = Shelf(tmp_path / "tier")
    yield shelf
    shelf.close()
    assert len(os.listdir("/proc/self/fd")) <= before, "descriptors were left open"


@pytest.fixture(params=[0o077, 0o027], ids=["alone", "with its group"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of a process that the launcher starts, and of a worker that shares its socket."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_everything_is_private(umask: int, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "tier")
    name = shelf.put(1)
    shelf.close()
    tier = tmp_path / "tier"
    assert stat.S_IMODE(tier.stat().st_mode) == 0o700
    file = tier / "files" / name[-2:] / name
    assert file.stat().st_nlink == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o640 & ~umask
    assert stat.S_IMODE((tier / "pub").stat().st_mode) == 0o750 & ~umask
    former = (tier / "trash").iterdir()  # folders `pub` of earlier owners
    for path in {*tier.rglob("*")} - {file, tier / "pub", *(tier / "pub").iterdir(), *former}:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.parent.name == "index", path


def test_a_second_owner_is_told_who_has_it(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(InUse, match=str(os.getpid())):
        TierDirectory.take(str(tmp_path / "tier"))


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "thesis.txt").write_text("mine")
    with pytest.raises(BadConfig, match="not a cache directory"):
        TierDirectory.take(str(tmp_path))
    assert (tmp_path / "files" / "thesis.txt").read_text() == "mine"


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(BadConfig):
        TierDirectory.take(str(tmp_path / "link"))


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "kind_of_mount", lambda fd: "nfs4")
    with pytest.raises(BadConfig, match="nfs4"):
        TierDirectory.take(str(tmp_path / "tier"))


def test_published_files_survive_a_restart_and_not_a_boot(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    first = Shelf(path)
    name = first.put(1)
    first.close()
    again = Shelf(path)
    fd = again.published(name)
    assert fd is not None
    os.close(fd)
    totals = again.tier.index.totals()
    assert (totals.files, totals.allocated_bytes) == (1, 102_400)
    assert again.tier.header.trusts(1)
    again.close()
    rebooted = Shelf(path, OTHER_BOOT)
    assert rebooted.published(name) is None
    assert rebooted.tier.index.get(bytes.fromhex(name)) is not None
    assert not rebooted.tier.header.trusts(1)
    assert rebooted.tier.index.totals().files == 1
    rebooted.close()


def test_a_start_after_a_boot_that_fails_leaves_nothing_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tier"
    first = Shelf(path)
    name = first.put(1)
    first.close()

    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(directory, "Index", fails)
        with pytest.raises(NoDescriptorLeft):
            Shelf(path, OTHER_BOOT)
    again = Shelf(path, OTHER_BOOT)
    assert again.published(name) is None
    assert not again.tier.header.trusts(1)
    again.close()


def test_what_was_synced_is_trusted_after_a_boot(tmp_path: Path) -> None:
    first = Shelf(tmp_path / "tier")
    epoch = first.tier.header.epoch
    first.put(1, epoch=epoch)
    first.tier.sync(epoch)
    first.close()
    rebooted = Shelf(tmp_path / "tier", OTHER_BOOT)
    assert rebooted.tier.header.trusts(epoch)
    assert not rebooted.tier.header.trusts(epoch + 1)
    rebooted.close()


@pytest.mark.parametrize("damage", ["header", "index"])
def test_a_damaged_tier_starts_empty(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tier"
    first = Shelf(path)
    name = first.put(1)
    first.close()
    victim = path / "TIER" if damage == "header" else path / "index" / "data.mdb"
    victim.write_bytes(b"\xff" * 20_000)
    again = Shelf(path)
    assert "starts empty" in caplog.text
    assert again.published(name) is None
    assert again.tier.index.totals().files == 0
    again.tier.empty_trash()
    again.put(1)
    again.close()
    assert os.listdir(path / "trash") == []


def test_a_published_file_must_be_whole(shelf: Shelf) -> None:
    name = shelf.put(1)
    assert shelf.tier.open_published(name, SIZE + 1) is None
    os.unlink(Path(shelf.tier.path) / "files" / name[-2:] / name)
    assert shelf.published(name) is None, "the only link is the one in pub/"
    assert shelf.published(name_of(2)) is None


def test_a_tier_that_cannot_be_opened_for_want_of_descriptors_asks_for_no_other_directory(
    tmp_path: Path,
) -> None:
    with descriptors_left(2), pytest.raises(NoDescriptorLeft) as caught:
        TierDirectory.take(str(tmp_path / "tier"), BOOT)
    assert "ulimit" in caught.value.remedy


def test_create_replaces_what_has_no_record(shelf: Shelf) -> None:
    for size_bytes, made_bytes in ((10, 0), (20, 0), (3 * PAGE_BYTES + 1, 3 * PAGE_BYTES + 1)):
        fd = shelf.tier.create(name_of(1), size_bytes)
        assert os.fstat(fd).st_size == made_bytes, "one of a single page grows as it is written"
        os.write(fd, b"left by a crash")
        os.close(fd)


def test_eviction_takes_what_nobody_has(shelf: Shelf) -> None:
    names = [shelf.put(number) for number in range(6)]
    opened = os.open(f"/proc/self/fd/{shelf.tier.pub_fd}/{names[1]}", os.O_RDONLY)
    fd = os.open(f"/proc/self/fd/{shelf.tier.pub_fd}/{names[2]}", os.O_RDONLY)
    with mmap.mmap(fd, SIZE, prot=mmap.PROT_READ) as mapped:
        os.close(fd)
        result = evict(shelf.tier, shelf.writer, names, 2 * SIZE, lambda: True)
        assert mapped[:2] == b"xx"
    assert result.busy == [names[1], names[2]]
    assert sorted(result.gone) == sorted([names[0], names[3]])
    assert set(result.gone.values()) == {102_400}
    assert os.pread(opened, 10, 0) == b"x" * 10
    os.close(opened)
    left = {names[n] for n in (1, 2, 4, 5)}
    assert set(os.listdir(f"/proc/self/fd/{shelf.tier.pub_fd}")) == left
    totals = shelf.tier.index.totals()
    assert (totals.files, totals.allocated_bytes) == (4, 4 * 102_400)


def test_an_eviction_that_cannot_look_at_a_file_leaves_all_published(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [shelf.put(number) for number in range(3)]
    right = TierDirectory.open_file

    def open_file(tier: TierDirectory, name: str, flags: int) -> int | None:
        if name == names[1]:
            raise OSError(errno.EMFILE, "Too many open files")
        return right(tier, name, flags)

    monkeypatch.setattr(TierDirectory, "open_file", open_file)
    with pytest.raises(OSError, match="Too many open files"):
        evict(shelf.tier, shelf.writer, names, 100 * SIZE, lambda: True)
    assert {*os.listdir(shelf.tier.pub_fd)} == {*names}
    assert shelf.tier.index.totals().files == 3


def test_a_drop_without_an_answer_of_the_index_leaves_no_descriptor(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`shelf` counts them."""
    name = shelf.put(1)

    def fails(key: bytes) -> None:
        raise OSError(errno.EIO, "the index cannot be read")

    monkeypatch.setattr(shelf.tier.index, "get", fails)
    with pytest.raises(OSError, match="cannot be read"):
        drop(shelf.tier, shelf.writer, [name])
    assert os.listdir(shelf.tier.pub_fd) == [name]


def test_eviction_ends_with_its_permission(shelf: Shelf) -> None:
    names = [shelf.put(number) for number in range(4)]
    answers = iter([True, True, False])
    result = evict(shelf.tier, shelf.writer, names, 100 * SIZE, lambda: next(answers))
    assert sorted(result.gone) == sorted(names[:2])


def test_dropping_leaves_readers_their_bytes(shelf: Shelf) -> None:
    names = [shelf.put(number) for number in range(2)]
    fd = shelf.published(names[0])
    assert fd is not None
    dropped = drop(shelf.tier, shelf.writer, [*names, name_of(9)])
    assert os.pread(fd, 10, 0) == b"x" * 10
    held = dropped[names[0]]
    assert (held.recorded_bytes, held.allocated_bytes) == (102_400, 102_400)
    assert held.fd >= 0
    assert not filesystem.is_unused(held.fd)
    os.close(fd)
    assert filesystem.is_unused(held.fd)
    os.close(held.fd)
    assert dropped[names[1]].fd == -1
    assert shelf.tier.index.totals().files == 0
    assert shelf.tier.fans() != []
    assert [name for fan in shelf.tier.fans() for name in shelf.tier.names(fan)] == []


def test_a_publication_on_its_way_is_undone_before_its_record_goes(shelf: Shelf) -> None:
    """A crash at any moment leaves no name in `pub/` without a record."""
    tier, writer = shelf.tier, shelf.writer
    name = shelf.put(1)
    key = bytes.fromhex(name)
    tier.unpublish(name)
    record = tier.index.get(key)
    assert record is not None
    submit, write = writer.submit, tier.index.write
    dropping = threading.Event()
    seen: list[tuple[bool, bool]] = []  # published, recorded

    def look() -> None:
        seen.append((name in os.listdir(tier.pub_fd), tier.index.get(key) is not None))

    def watched_submit(*arguments: Any) -> bool:
        submitted = submit(*arguments)
        dropping.set()
        return submitted

    def watched_write(changes: list[Change]) -> None:
        write(changes)
        look()

    def publish() -> None:
        assert dropping.wait(10)
        tier.publish(name)
        look()

    writer.submit([PutFile(key, record, {0: 1})], lambda _: None, publish)
    writer.submit = watched_submit  # type: ignore[method-assign, assignment]
    tier.index.write = watched_write  # type: ignore[method-assign]
    drop(tier, writer, [name])
    look()
    assert (True, False) not in seen
    assert seen[-1] == (False, False)


_LEASE = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lease_of_another_process_reads_as_absent(shelf: Shelf) -> None:
    name = shelf.put(1)
    place = Path(shelf.tier.path) / "files" / name[-2:] / name
    holder = subprocess.Popen(
        [sys.executable, "-c", _LEASE, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert shelf.published(name) is None
        assert evict(shelf.tier, shelf.writer, [name], SIZE, lambda: True).busy == [name]
        holder.kill()


def test_a_drop_waits_for_who_asks_by_a_lease(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evictions and looks at what is left over hold one for moments."""
    names = [shelf.put(number) for number in range(2)]
    right, refusals = TierDirectory.open_file, [names[1]] * 3

    def open_file(tier: TierDirectory, name: str, flags: int) -> int | None:
        if refusals and refusals[-1] == name:
            refusals.pop()
            raise BlockingIOError(errno.EAGAIN, "under a lease")
        return right(tier, name, flags)

    monkeypatch.setattr(TierDirectory, "open_file", open_file)
    assert [one.fd for one in drop(shelf.tier, shelf.writer, names).values()] == [-1, -1]
    kept = [shelf.put(number) for number in range(2)]
    refusals += [kept[1]] * (LEASE_LOOKS + 1)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        drop(shelf.tier, shelf.writer, kept)
    assert os.listdir("/proc/self/fd") == before
    assert shelf.tier.index.totals().files == 2


def test_scratch_files_have_no_name(shelf: Shelf) -> None:
    fd = shelf.tier.scratch_file(1 << 20)
    assert os.fstat(fd).st_nlink == 0
    os.pwrite(fd, b"abc", 5)
    reader = filesystem.reopen(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(reader, b"no")
    assert os.pread(reader, 3, 5) == b"abc"
    assert not filesystem.is_unused(fd)
    os.close(reader)
    assert filesystem.is_unused(fd)
    os.close(fd)


def test_totals_follow_every_change(shelf: Shelf) -> None:
    key = bytes.fromhex(name_of(1))
    record = FileRecord(3 << 20, "", 1, 4096, False, 5)
    shelf.writer.write([PutFile(key, record, {0: 7, 2: 9}), TouchFile(key, 9, 8192)])
    assert shelf.tier.index.totals().allocated_bytes == 8192
    assert shelf.tier.index.bits(key, record.size) == 0b101
    assert shelf.tier.index.sums(key, record.size, 0, 3) == {0: 7, 2: 9}
    touched = shelf.tier.index.get(key)
    assert touched is not None
    assert touched.last_use_s == 9
    shelf.writer.write([DropFile(key), TouchFile(key, 50), DropFile(key)])
    totals = shelf.tier.index.totals()
    assert (totals.files, totals.allocated_bytes) == (0, 0)
    assert shelf.tier.index.bits(key, record.size) == 0
    assert shelf.tier.index.get(key) is None


def test_pages_of_large_files_are_kept_by_blocks(shelf: Shelf) -> None:
    key, other = bytes.fromhex(name_of(1)), bytes.fromhex(name_of(2))
    size = 700 << 20
    record = FileRecord(size, "", 1, 4096, False, 5)
    sums = {page: page + 1 for page in (0, 255, 256, 511, 512, 699)}
    shelf.writer.write([PutFile(key, record, sums), PutFile(other, record, {3: 3})])
    assert shelf.tier.index.bits(key, size) == sum(1 << page for page in sums)
    assert shelf.tier.index.sums(key, size, 0, 700) == sums
    shelf.writer.write([DropFile(key)])
    assert shelf.tier.index.bits(key, size) == 0
    assert shelf.tier.index.bits(other, size) == 0b1000


def test_a_commit_that_fails_publishes_nothing(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(changes: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(shelf.tier.index, "write", broken)
    published = []
    with pytest.raises(OSError, match="no space"):
        shelf.writer.write([DropFile(b"k" * 36)])
    shelf.writer.submit([DropFile(b"k" * 36)], lambda err: None, lambda: published.append(1))
    with pytest.raises(OSError, match="no space"):
        shelf.writer.write([DropFile(b"k" * 36)])
    assert published == []
