"""The covers of a mount on the orders of a server, with a mount in memory."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from cachefs.core import messages as m
from cachefs.core.errors import Stale
from cachefs.core.model import NamespaceId
from cachefs.core.mountinfo import Mount
from cachefs.fuse.covers import covers as covers_module
from cachefs.fuse.covers.cover_records import CoverRecords, RecordedCover
from cachefs.fuse.covers.covered_mount import CoveredMount
from cachefs.fuse.covers.covers import Covers
from cachefs.fuse.covers.orders import MAX_COVERS
from cachefs.fuse.covers.place import Place

NAMESPACE = NamespaceId(b"n" * 16)


class MountInMemory(CoveredMount):
    """Stands for the kernel. Every call waits for `gate`. `device` "": nothing is mounted yet."""

    def __init__(self, device: str = "0:50") -> None:
        super().__init__("/mnt", device, CoverRecords(Path("/nowhere/covers")))
        self.covers: dict[int, Mount] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.refusal: Exception | None = None
        self.unknown: dict[int, Mount] = {}  # covers without a record
        self.on_look_up: Callable[[], None] = lambda: None

    def found(self) -> dict[int, Mount]:
        return dict(self.covers)

    def has_unknown(self) -> bool:
        return bool(self.unknown)

    def remove_unknown(self) -> None:
        self.unknown.clear()

    def look_up(self) -> None:
        self.on_look_up()

    def is_there(self) -> bool:
        return True

    def lay(
        self, view: int, tree: int, place: Place, ino: int, has_order: Callable[[int], bool]
    ) -> None:
        os.close(tree)
        assert self.gate.wait(10)
        assert self.device
        if self.refusal is not None:
            raise self.refusal
        where = os.path.join("/mnt", os.fsdecode(place.inside)).rstrip("/")
        self.covers[view] = Mount("8:1", f"/views/{view}", where, "ext4", "/dev/sda", ())

    def remove(self, view: int) -> None:
        assert self.gate.wait(10)
        if self.refusal is not None:
            raise self.refusal
        self.covers.pop(view, None)


class Heard:
    """Stands for the server."""

    def __init__(self, *, knows_covers: bool = True) -> None:
        self.knows_covers = knows_covers
        self.is_connected = True
        self.said: list[m.CoverChanged] = []

    def report(self, body: m.Message) -> None:
        assert isinstance(body, m.CoverChanged)
        self.said.append(body)

    def pairs(self) -> list[tuple[int, bool]]:
        return [(one.view, one.covered) for one in self.said]


class Rig:
    """Covers that run on a mount in memory."""

    def __init__(self) -> None:
        self.mount = MountInMemory()
        self.server = Heard()
        self.unmounted = 0
        self.covers = Covers(self.mount, b"", self._on_unmounted)
        self.covers.greeted(self.server)

    def _on_unmounted(self) -> None:
        self.unmounted += 1

    def order(self, view: int, path: bytes = b"train") -> None:
        tree = os.open("/", os.O_PATH)
        self.covers.cover(m.Cover(view, NAMESPACE, 5, path), tree)

    async def until(self, holds: Callable[[], bool]) -> None:
        with trio.fail_after(10):
            while not holds():
                await trio.sleep(0.001)


def run(check: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig()
        before = len(os.listdir("/proc/self/fd"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.covers.run)
            await check(rig)
            rig.mount.gate.set()
            nursery.cancel_scope.cancel()
        # A thread that was abandoned may still close its descriptor.
        await rig.until(lambda: len(os.listdir("/proc/self/fd")) <= before)

    trio.run(main)


def test_each_change_is_reported_after_it_happened() -> None:
    async def check(rig: Rig) -> None:
        rig.order(7)
        await rig.until(lambda: rig.server.pairs() == [(7, True)])
        assert rig.mount.covers[7].mountpoint == "/mnt/train"
        rig.covers.uncover(m.Uncover(7))
        await rig.until(lambda: rig.server.pairs() == [(7, True), (7, False)])
        assert rig.mount.covers == {}

    run(check)


def test_a_refusal_is_reported_with_its_reason() -> None:
    async def check(rig: Rig) -> None:
        rig.mount.refusal = Stale("another directory is at that path")
        rig.order(7)
        await rig.until(lambda: bool(rig.server.said))
        assert rig.server.said == [m.CoverChanged(7, False, "another directory is at that path")]

    run(check)


def test_an_uncover_overtakes_a_queued_cover_but_not_one_in_progress() -> None:
    async def check(rig: Rig) -> None:
        rig.mount.gate.clear()
        rig.order(1)
        await rig.until(lambda: rig.covers._busy is not None)
        rig.order(2)
        rig.covers.uncover(m.Uncover(2))
        rig.covers.uncover(m.Uncover(1))
        assert rig.server.said == []
        rig.mount.gate.set()
        await rig.until(lambda: len(rig.server.said) == 3)
        assert rig.server.pairs() == [(1, True), (2, False), (1, False)]
        assert rig.mount.covers == {}

    run(check)


def test_an_unknown_view_is_answered_at_once() -> None:
    async def check(rig: Rig) -> None:
        rig.covers.uncover(m.Uncover(5))
        assert rig.server.pairs() == [(5, False)]

    run(check)


def test_the_next_server_hears_of_covers_that_are_or_may_be_there() -> None:
    async def check(rig: Rig) -> None:
        rig.order(1)
        await rig.until(lambda: bool(rig.mount.covers))
        await rig.until(lambda: rig.covers._busy is None)
        rig.mount.gate.clear()
        rig.order(2)
        await rig.until(lambda: rig.covers._busy is not None)
        rig.order(3)
        after = Heard()
        rig.covers.greeted(after)
        assert sorted(after.pairs()) == [(1, True), (2, True)]  # 3: its session has ended
        rig.mount.gate.set()
        await rig.until(lambda: after.pairs()[2:] == [(2, True)])
        assert set(rig.mount.covers) == {1, 2}

    run(check)


def test_a_server_without_covers_has_them_removed() -> None:
    async def check(rig: Rig) -> None:
        rig.order(1)
        await rig.until(lambda: bool(rig.server.said))
        rig.covers.greeted(Heard(knows_covers=False))
        await rig.until(lambda: not rig.mount.covers)

    run(check)


def test_the_number_of_covers_is_bounded() -> None:
    async def check(rig: Rig) -> None:
        rig.mount.gate.clear()
        for view in range(MAX_COVERS + 3):
            rig.order(view, b"d%d" % view)
        refused = [one.view for one in rig.server.said]
        assert refused == [MAX_COVERS, MAX_COVERS + 1, MAX_COVERS + 2]
        rig.mount.gate.set()
        await rig.until(lambda: len(rig.mount.covers) == MAX_COVERS)

    run(check)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch looks without a pause: mounts always count as changed."""

    class AlwaysChanged:
        def __enter__(self) -> AlwaysChanged:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def seen(self) -> bool:
            return True

    monkeypatch.setattr(covers_module, "MountChanges", AlwaysChanged)
    monkeypatch.setattr(covers_module, "WATCH_S", 0.001)


@pytest.mark.usefixtures("quick")
def test_a_cover_that_is_gone_is_reported() -> None:
    async def check(rig: Rig) -> None:
        rig.order(1)
        await rig.until(lambda: bool(rig.server.said))
        rig.mount.covers.clear()
        await rig.until(lambda: len(rig.server.said) == 2)
        assert (rig.server.said[1].covered, bool(rig.server.said[1].reason)) == (False, True)
        assert rig.unmounted == 0

    run(check)


@pytest.mark.usefixtures("quick")
def test_a_table_of_mounts_that_cannot_be_read_is_read_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(rig: Rig) -> None:
        rig.order(1)
        await rig.until(lambda: bool(rig.server.said))
        found, looks = rig.mount.found, []

        def fails() -> Any:
            looks.append(1)
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(rig.mount, "found", fails)
        rig.mount.covers.clear()
        await rig.until(lambda: len(looks) > 3)
        assert len(rig.server.said) == 1
        monkeypatch.setattr(rig.mount, "found", found)
        await rig.until(lambda: len(rig.server.said) == 2)

    run(check)
    assert [one.levelname for one in caplog.records if "cannot be compared" in one.message] == [
        "WARNING"
    ]


@pytest.mark.usefixtures("quick")
def test_who_removes_the_cover_of_the_root_unmounts() -> None:
    async def check(rig: Rig) -> None:
        rig.order(1, b"")
        await rig.until(lambda: bool(rig.server.said))
        rig.mount.covers.clear()
        await rig.until(lambda: rig.unmounted == 1)

    run(check)


@pytest.mark.usefixtures("quick")
def test_a_cover_that_this_client_was_to_remove_is_no_unmount() -> None:
    """After its deadline the server removes the cover itself."""

    async def check(rig: Rig) -> None:
        rig.order(1, b"")
        await rig.until(lambda: bool(rig.server.said))
        rig.mount.refusal = OSError(errno.EMFILE, "Too many open files")
        rig.covers.uncover(m.Uncover(1))
        await rig.until(lambda: not rig.covers._orders.has(1) and rig.covers._busy is None)
        assert rig.server.pairs() == [(1, True)]
        rig.mount.covers.clear()
        await rig.until(lambda: rig.server.pairs() == [(1, True), (1, False)] or rig.unmounted > 0)
        assert rig.unmounted == 0

    run(check)


@pytest.mark.usefixtures("quick")
def test_a_cover_that_is_lost_while_there_is_no_connection_is_no_unmount() -> None:
    """A server removes the covers of clients that it does not hear of."""

    async def check(rig: Rig) -> None:
        rig.order(1, b"")
        await rig.until(lambda: bool(rig.server.said))
        rig.server.is_connected = False
        rig.mount.covers.clear()
        await rig.until(lambda: not rig.covers._known)
        assert rig.unmounted == 0

    run(check)


@pytest.mark.usefixtures("quick")
def test_a_cover_of_the_root_whose_record_is_lost_is_no_unmount() -> None:
    async def check(rig: Rig) -> None:
        rig.order(1, b"")
        await rig.until(lambda: bool(rig.server.said))
        rig.mount.covers, rig.mount.unknown = {}, rig.mount.covers
        await rig.until(lambda: rig.server.pairs() == [(1, True), (1, False)] or rig.unmounted > 0)
        assert rig.unmounted == 0
        assert rig.mount.unknown == {}

    run(check)


def test_the_end_removes_all_covers_and_refuses_more() -> None:
    async def check(rig: Rig) -> None:
        rig.order(1)
        rig.order(2, b"other")
        await rig.until(lambda: len(rig.mount.covers) == 2)
        await rig.covers.end()
        assert rig.mount.covers == {}
        rig.order(3)
        assert rig.server.pairs()[-1] == (3, False)

    run(check)


@pytest.mark.usefixtures("quick")
def test_a_successor_reports_what_it_finds() -> None:
    async def main() -> None:
        mount = MountInMemory()
        mount.covers[4] = Mount("8:1", "/views/4", "/mnt/a", "ext4", "/dev/sda", ())
        server, covers = Heard(), Covers(mount, b"", lambda: None)
        covers.greeted(server)
        assert server.pairs() == [(4, True)]
        mount.covers[5] = Mount("8:1", "/views/5", "/mnt/b", "ext4", "/dev/sda", ())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(covers.run)
            with trio.fail_after(10):
                while len(server.said) < 2:
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        assert server.pairs() == [(4, True), (5, True)]

    trio.run(main)


@pytest.mark.usefixtures("quick")
def test_a_cover_that_the_kernel_removes_at_a_lookup_is_reported_at_once() -> None:
    """After names were distrusted, the paths of covers are looked up."""

    async def check(rig: Rig) -> None:
        rig.order(7)
        await rig.until(lambda: rig.server.pairs() == [(7, True)])
        rig.mount.on_look_up = rig.mount.covers.clear
        rig.covers.distrusted()
        await rig.until(lambda: len(rig.server.said) == 2)
        assert rig.server.pairs() == [(7, True), (7, False)]
        assert rig.covers._missing == {}

    run(check)


def test_orders_wait_until_the_mount_is_there() -> None:
    """The server gives them as soon as the client has attached, which mounts after that."""

    async def main() -> None:
        mount, server = MountInMemory(device=""), Heard()
        covers = Covers(mount, b"", lambda: None)
        covers.greeted(server)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(covers.run)
            covers.cover(m.Cover(7, NAMESPACE, 5, b"train"), os.open("/", os.O_PATH))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert server.said == []
            covers.mounted("0:50")
            with trio.fail_after(10):
                while not server.said:
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        assert server.pairs() == [(7, True)]

    trio.run(main)


def test_a_tree_that_the_mount_does_not_show_is_refused(tmp_path: Path) -> None:
    server, covers = Heard(), Covers(MountInMemory(), b"mounted", lambda: None)
    covers.greeted(server)
    tree = os.open(tmp_path, os.O_PATH)
    covers.cover(m.Cover(1, NAMESPACE, 5, b"elsewhere"), tree)
    assert server.pairs() == [(1, False)]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(tree)


def test_a_record_that_cannot_be_removed_keeps_no_cover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = CoverRecords(tmp_path / "a.covers")
    records.put(RecordedCover(1, "90"))

    def read_only(_: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(records, "drop", read_only)
    CoveredMount("/nowhere", "0:50", records).remove(1)


def test_records_say_which_mount_is_which_cover(tmp_path: Path) -> None:
    records = CoverRecords(tmp_path / "a.covers")
    assert records.read() == []
    records.put(RecordedCover(1, "90"))
    records.put(RecordedCover(2, "91"))
    records.put(RecordedCover(3, "90"))  # the kernel uses the id again
    assert CoverRecords(tmp_path / "a.covers").read() == [
        RecordedCover(2, "91"),
        RecordedCover(3, "90"),
    ]
    records.drop(2)
    records.drop(3)
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "a.covers").write_bytes(b"[[1")
    assert records.read() == []
    records.clear()
