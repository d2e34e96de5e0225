"""The trees of views on a real directory: what they show, and what a kill at any step leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from worker.store import tree_removal, trees
from worker.store.changes import PutFile
from worker.store.directory import TierDirectory
from worker.store.records import FileRecord
from worker.store.view_page import ViewPage
from worker.store.view_records import DIRECTORY, FILE, SYMLINK, NameRecord, ViewRecord
from worker.store.writer import Writer

VIEW = 7
TOP = 100
RECORD = ViewRecord(b"n" * 16, b"train", (os.geteuid(), os.getegid(), 0o644, 0o755), top=TOP)
MTIME_NS = 1_600_000_000_123_456_789


class Crash(BaseException):
    """The process is killed here."""


def content(number: int) -> bytes:
    return b"n" * 16 + number.to_bytes(20, "big")


class Disk:
    """A tier with its writer. Killed and opened again by `restart`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        self.tier = TierDirectory.take(str(self.path), boot=b"b" * 16)
        self.writer = Writer(self.tier.index)

    def close(self) -> None:
        self.writer.close()
        self.tier.close()

    def restart(self) -> None:
        self.close()
        self._open()

    def cache(self, number: int, size: int = 1000) -> bytes:
        """A complete, published file."""
        key = content(number)
        fd = self.tier.create(key.hex(), size)
        os.pwrite(fd, bytes([number]) * size, 0)
        os.close(fd)
        epoch = self.tier.header.epoch
        self.writer.write([PutFile(key, FileRecord(size, "e", epoch, 4096, True, 1), {0: 1})])
        self.tier.publish(key.hex())
        return key

    def shown(self) -> dict[str, Any]:
        """What a cover of the tree shows."""
        found: dict[str, Any] = {}
        top = self.path / "views" / f"{VIEW:016x}"
        for path in sorted(top.rglob("*")):
            name = str(path.relative_to(top))
            if path.is_symlink():
                found[name] = os.readlink(path)
            else:
                found[name] = "dir" if path.is_dir() else path.read_bytes()
        return found

    def check(self) -> None:
        """No link without a record."""
        index = self.tier.index
        recorded = {record.content.hex() for _, record in index.scan_names(b"", 10_000)}
        for path in (self.path / "files").rglob("*"):
            if path.is_file():
                published = (self.path / "pub" / path.name).exists()
                extra = path.stat().st_nlink - 1 - published
                assert extra in (0, 1)
                assert not extra or path.name in recorded
        for path in (self.path / "views").iterdir():
            assert int(path.name, 16) in index.views()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "tier")
    yield made
    made.close()


def file(number: int, key: bytes, size: int = 1000, mode: int = 0o644) -> NameRecord:
    return NameRecord(number, FILE, key, mode, os.geteuid(), os.getegid(), MTIME_NS, size)


def directory(ino: int, mode: int = 0o755) -> NameRecord:
    return NameRecord(ino, DIRECTORY, b"", mode, os.geteuid(), os.getegid(), MTIME_NS)


def page(names: dict[bytes, NameRecord], ino: int = TOP, *path: bytes) -> ViewPage:
    return ViewPage(VIEW, ino, path, b"", b"", names)


def sample(disk: Disk) -> list[ViewPage]:
    link = NameRecord(5, SYMLINK, b"", 0o777, os.geteuid(), os.getegid(), MTIME_NS, 3, b"a/b")
    empty = NameRecord(6, FILE, b"", 0o600, os.geteuid(), os.getegid(), MTIME_NS)
    return [
        page({
            b"a/": directory(20), b"empty": empty, b"f": file(1, disk.cache(1)), b"link": link,
            b"\xff": file(2, disk.cache(2)),
        }),
        page({b"b": file(3, disk.cache(3), mode=0o440)}, 20, b"a"),
    ]  # fmt: skip


def build(disk: Disk, pages: list[ViewPage]) -> None:
    trees.make(disk.tier, disk.writer, VIEW, RECORD)
    for one in pages:
        assert not trees.apply(disk.tier, disk.writer, one).missing


def remove(disk: Disk) -> list[bytes]:
    """The contents that were in the tree."""
    batches = tree_removal.remove(disk.tier, disk.writer, VIEW)
    return sorted(key for batch in batches for key in batch.contents)


def test_a_tree_shows_names_bytes_and_attributes(disk: Disk) -> None:
    build(disk, sample(disk))
    trees.finish_directory(disk.tier, VIEW, (b"a",), directory(20, 0o750))
    assert disk.shown() == {
        "a": "dir", "a/b": b"\3" * 1000, "empty": b"", "f": b"\1" * 1000, "link": "a/b",
        "\udcff": b"\2" * 1000,
    }  # fmt: skip
    top = disk.path / "views" / f"{VIEW:016x}"
    info = (top / "a/b").stat()
    assert (info.st_mode & 0o7777, info.st_mtime_ns) == (0o440, MTIME_NS)
    assert (top / "a").stat().st_mode & 0o7777 == 0o750
    assert (top / "a").stat().st_mtime_ns == (top / "link").lstat().st_mtime_ns == MTIME_NS
    disk.check()


def test_a_file_has_the_mode_of_others_once_it_left_its_tree(disk: Disk) -> None:
    other = disk.path / "files" / content(50).hex()[-2:] / disk.cache(50).hex()
    build(disk, sample(disk))
    assert remove(disk) == [content(n) for n in (1, 2, 3)]
    for path in (disk.path / "files").rglob("*"):
        if path.is_file():
            mode, right = path.stat().st_mode, other.stat().st_mode
            assert (mode | 0o044, mode & right) == (right | 0o044, right)
            assert path.stat().st_nlink == 2
    assert not disk.tier.header.views
    assert [*(disk.path / "views").iterdir()] == []


def test_what_changed_is_replaced_and_the_rest_is_kept(disk: Disk) -> None:
    first, below = sample(disk)
    build(disk, [first, below])
    top = disk.path / "views" / f"{VIEW:016x}"
    kept = (top / "f").stat().st_ino
    names = dict(first.names)
    del names[b"a/"], names[b"link"]
    names[b"\xff"] = file(9, disk.cache(9))
    names[b"f"] = file(1, content(1), mode=0o400)
    applied = trees.apply(disk.tier, disk.writer, page(names))
    assert sorted(applied.released) == [content(2), content(3)]
    assert disk.shown() == {"empty": b"", "f": b"\1" * 1000, "\udcff": b"\t" * 1000}
    assert ((top / "f").stat().st_ino, (top / "f").stat().st_mode & 0o777) == (kept, 0o400)
    assert not trees.differs(disk.tier, page(names))
    assert trees.differs(disk.tier, first)
    disk.check()


def test_a_file_that_is_not_complete_is_not_shown(disk: Disk) -> None:
    trees.make(disk.tier, disk.writer, VIEW, RECORD)
    names = {b"here": file(1, disk.cache(1)), b"not": file(2, content(2))}
    assert trees.apply(disk.tier, disk.writer, page(names)).missing == [b"not"]
    assert [*disk.shown()] == ["here"]
    disk.tier.unlink(content(1).hex())  # a disk that lost it
    applied = trees.apply(disk.tier, disk.writer, page(names))
    assert (sorted(applied.missing), applied.released) == ([b"here", b"not"], [content(1)])
    assert disk.shown() == {}


def test_a_content_that_is_not_held_is_not_shown(disk: Disk) -> None:
    trees.make(disk.tier, disk.writer, VIEW, RECORD)
    names = {b"f": file(1, disk.cache(1)), b"g": file(2, disk.cache(2))}
    applied = trees.apply(disk.tier, disk.writer, page(names), frozenset({content(2)}))
    assert (applied.missing, [*disk.shown()]) == ([b"g"], ["f"])
    disk.check()


def test_a_tree_is_removed_in_batches_from_the_top_down(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_removal, "NAMES_AT_ONCE", 2)
    pages = sample(disk)
    build(disk, pages)
    left = {content(n) for n in (1, 2, 3)}
    for batch in tree_removal.remove(disk.tier, disk.writer, VIEW):
        left -= {*batch.contents}
        disk.check()
        recorded = {record.content for _, record in disk.tier.index.scan_names(b"", 100)}
        assert recorded - {b""} == left
    assert not left
    assert disk.tier.index.views() == {}


def test_a_tree_that_takes_the_place_of_another_is_recorded_with_it(disk: Disk) -> None:
    build(disk, sample(disk))
    thawed = msgspec.structs.replace(RECORD, thawed=True)
    trees.replace(disk.tier, disk.writer, (VIEW, thawed), VIEW + 1, RECORD)
    assert disk.tier.index.views() == {VIEW: thawed, VIEW + 1: RECORD}
    assert remove(disk) == [content(n) for n in (1, 2, 3)]
    assert disk.tier.index.views() == {VIEW + 1: RECORD}
    assert disk.tier.header.views


def test_contents_are_found_and_withdrawn(disk: Disk) -> None:
    build(disk, sample(disk))
    places = trees.find(disk.tier, frozenset({content(3), content(77)}))
    assert [(one.view, one.path, one.key) for one in places] == [(VIEW, (b"a",), b"b")]
    trees.withdraw(disk.tier, disk.writer, places)
    assert "a/b" not in disk.shown()
    assert trees.find(disk.tier, frozenset({content(3)})) == []
    disk.check()


def test_an_emptied_tree_shows_nothing_and_is_filled_again(disk: Disk) -> None:
    pages = sample(disk)
    build(disk, pages)
    fd = trees.open_top(disk.tier, VIEW)
    try:
        trees.empty(disk.tier, VIEW)
        assert os.listdir(f"/proc/self/fd/{fd}") == []
    finally:
        os.close(fd)
    build(disk, pages)
    assert disk.shown()["a/b"] == b"\3" * 1000


def test_after_a_boot_there_are_no_trees(disk: Disk) -> None:
    build(disk, sample(disk))
    disk.close()
    disk.tier = TierDirectory.take(str(disk.path), boot=b"c" * 16)
    disk.writer = Writer(disk.tier.index)
    assert disk.shown() == {}
    disk.tier.empty_trash()
    assert all(
        path.is_dir() or path.stat().st_nlink == 1 for path in (disk.path / "files").rglob("*")
    )


# ---- a kill at each step ----

_CALLS = ("link", "unlink", "mkdir", "rmdir", "symlink", "chown", "chmod", "utime")


@contextmanager
def killed_at(step: int, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Kills before the call number `step` that changes the disk."""
    count = [0]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if count[0] >= step:
                raise Crash
            count[0] += 1
            return function(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in _CALLS:
            patch.setattr(os, name, counted(getattr(os, name)))
        patch.setattr(writer, "write", counted(writer.write))
        yield count


def test_a_kill_at_any_step_leaves_no_link_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start builds the tree, or removes it, whatever step was the last one."""
    step = 0
    while True:
        disk = Disk(tmp_path / f"tier{step}")
        pages = sample(disk)
        changed = [page({b"f": pages[0].names[b"f"], b"g": file(4, disk.cache(4))})]
        ended = False
        try:
            with killed_at(step, disk.writer, monkeypatch):
                build(disk, pages)
                build(disk, changed)
                remove(disk)
                ended = True
        except Crash:
            pass
        disk.restart()
        trees.remove_unrecorded(disk.tier)
        disk.check()
        if step % 2:
            build(disk, pages)
            assert disk.shown()["a/b"] == b"\3" * 1000
            info = (disk.path / "views" / f"{VIEW:016x}" / "a/b").stat()
            assert (info.st_mode & 0o7777, info.st_mtime_ns) == (0o440, MTIME_NS)
            disk.check()
        remove(disk)
        assert all(
            path.is_dir() or path.stat().st_nlink == 2 for path in (disk.path / "files").rglob("*")
        )
        disk.close()
        if ended:
            break
        step += 1
    assert step > 35
