"""Names while the store cannot commit: its disk hangs, or is full."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cachefs.core.errors import CacheFSError, NoSpace, Unavailable, Unreachable
from cachefs.core.model import ROOT_INO
from cachefs.core.policies import Policy
from master.namespace import Master
from master.origins import late_store
from master.store.base import MAX_QUEUED_WRITES, Writer
from tests.services.memory import MemoryConnector
from tests.services.memory_store import MemoryStore
from tests.unit.master.sync_rig import INTERVAL_S, Clock, master_over, orphans, run, synced, until

LIMIT_S = 30.0


class TroubledStore(MemoryStore):
    """A store whose transactions wait for `goes_on`, or fail with `error`; or their commits fail,
    with `commit_error`."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.error: CacheFSError | None = None
        self.commit_error: CacheFSError | None = None
        super().__init__()

    @contextmanager
    def _begin(self) -> Iterator[Writer]:
        assert self.goes_on.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        with super()._begin() as writer:
            yield writer
            if self.commit_error is not None:
                raise self.commit_error


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[TroubledStore]:
    monkeypatch.setattr(late_store, "PATIENCE_S", 0.02)
    store = TroubledStore()
    yield store
    store.goes_on.set()


@pytest.fixture
def origin() -> MemoryConnector:
    origin = MemoryConnector()
    for name in (b"a", b"b"):
        origin.put(name, b"first")
    return origin


@contextlib.asynccontextmanager
async def known(store: TroubledStore, origin: MemoryConnector):  # type: ignore[no-untyped-def]
    """A master that knows both names, when they are no longer valid."""
    clock = Clock()
    async with master_over(store, origin, clock) as master:
        for name in (b"a", b"b"):
            assert (await master.lookup(ROOT_INO, name)).inode is not None
        clock.now += 2 * INTERVAL_S
        try:
            yield master
        finally:
            store.error = None
            store.goes_on.set()


async def ino_of(master: Master, name: bytes) -> int:
    found = await master.lookup(ROOT_INO, name)
    assert found.inode is not None
    return found.inode.ino


def test_a_name_that_the_origin_confirms_is_answered_while_the_disk_hangs(
    store: TroubledStore, origin: MemoryConnector
) -> None:
    async def script() -> None:
        async with known(store, origin) as master:
            store.goes_on.clear()
            for _ in range(3):
                found = await master.lookup(ROOT_INO, b"a")
                assert found.inode is not None
                assert found.valid_for_s == pytest.approx(INTERVAL_S)
            assert store.waiting <= 1, "no write is queued for a name that is confirmed"

    run(script())


def test_a_change_is_not_shown_before_it_is_durable(
    store: TroubledStore, origin: MemoryConnector
) -> None:
    async def script() -> None:
        async with known(store, origin) as master:
            store.goes_on.clear()
            confirmed = await ino_of(master, b"a")
            origin.put(b"a", b"second version")
            changed = asyncio.ensure_future(ino_of(master, b"a"))
            await asyncio.wait([changed], timeout=0.2)
            assert not changed.done()
            store.goes_on.set()
            assert await changed != confirmed

    run(script())


@pytest.mark.parametrize("error", [NoSpace("full"), Unavailable("read-only")])
def test_a_name_that_the_origin_confirms_is_answered_while_writes_fail(
    store: TroubledStore, origin: MemoryConnector, error: CacheFSError
) -> None:
    async def script() -> None:
        async with known(store, origin) as master:
            store.error = error
            assert await ino_of(master, b"a")
            with pytest.raises(type(error)):
                await master.lookup(ROOT_INO, b"new")
            origin.put(b"b", b"second version")
            store.failure = error.cause  # as a store on a disk reports it
            with pytest.raises(type(error)):
                await master.lookup(ROOT_INO, b"b")
            store.error, store.failure = None, ""
            assert await ino_of(master, b"b")

    origin.put(b"new", b"bytes")
    run(script())


@pytest.mark.parametrize("error", [NoSpace("full"), Unavailable("read-only")])
def test_a_listing_that_cannot_be_recorded_is_no_failure_of_the_origin(
    store: TroubledStore, origin: MemoryConnector, error: CacheFSError
) -> None:
    async def script() -> None:
        async with known(store, origin) as master:
            store.error = error
            with pytest.raises(type(error)):
                await master.list_dir(ROOT_INO, b"", 10)
            (source,) = master.status()["sources"]
            assert (source["origin_down"], source["origin_errors"]) == (False, 0)
            assert not source["last_warning"]
            store.error = None
            origin.fail("list_dir", None, Unreachable("no route to host"))
            with pytest.raises(Unreachable):
                await master.list_dir(ROOT_INO, b"", 10)
            (source,) = master.status()["sources"]
            assert (source["origin_down"], source["origin_errors"]) == (True, 1)

    run(script())


def test_a_listing_skips_no_name_of_which_a_later_reply_was_not_committed(
    store: TroubledStore,
) -> None:
    origin = MemoryConnector(page_entries=1)
    for name in (b"a", b"b"):
        origin.put(name, b"first")

    async def script() -> None:
        async with known(store, origin) as master:
            origin.put(b"b", b"second version")
            origin.block("page")
            listing = asyncio.ensure_future(master.list_dir(ROOT_INO, b"", 10))
            await asyncio.to_thread(origin.wait_blocked, "page")
            await asyncio.wrap_future(store.write(lambda _: None))  # after the first page
            store.commit_error = NoSpace("full")
            with pytest.raises(NoSpace):
                await master.lookup(ROOT_INO, b"b")
            store.commit_error = None
            origin.unblock("page")
            await listing
            found = await master.lookup(ROOT_INO, b"b")
            assert found.inode is not None
            assert found.inode.size == len(b"second version")

    run(script())


@pytest.mark.parametrize("path", [b"", b"d"])
def test_names_of_a_directory_whose_removal_a_sync_could_not_commit_end_with_it(
    store: TroubledStore, path: bytes
) -> None:
    origin = MemoryConnector()
    origin.put(b"d/1", b"first")
    origin.put(b"e", b"first")

    async def script() -> None:
        clock = Clock()
        async with master_over(store, origin, clock) as master:
            await synced(master)
            origin.delete(b"d/1")
            store.commit_error = NoSpace("full")
            assert (await synced(master, path)).shown.state == "failed"
            store.commit_error = None
            clock.now += 2 * INTERVAL_S
            assert (await master.lookup(ROOT_INO, b"d")).inode is None
            await until(lambda: not orphans(store))

    run(script())


def test_a_pin_that_becomes_durable_is_in_force_though_its_caller_has_gone(
    store: TroubledStore, origin: MemoryConnector
) -> None:
    async def script() -> None:
        async with master_over(store, origin) as master:
            await master.lookup(ROOT_INO, b"a")
            store.goes_on.clear()
            pin = asyncio.ensure_future(master.set_policy(b"a", Policy(pin=True), []))
            await until(lambda: store.waits_s > 0)
            pin.cancel()
            await asyncio.gather(pin, return_exceptions=True)
            store.goes_on.set()
            await asyncio.wrap_future(store.write(lambda _: None))  # after the pin's
            await until(lambda: master.pinned_below(b"") == [b"a"])

    run(script())


def test_many_writes_for_a_disk_that_hangs_do_not_stop_the_loop(
    store: TroubledStore, origin: MemoryConnector
) -> None:
    """A full queue of writes would."""
    names = [b"new-%d" % number for number in range(2 * MAX_QUEUED_WRITES)]
    for name in names:
        origin.put(name, b"")

    async def script() -> None:
        async with known(store, origin) as master:
            store.goes_on.clear()
            first = asyncio.ensure_future(master.lookup(ROOT_INO, names[0]))
            await until(lambda: late_store.is_late(store))
            others = [asyncio.ensure_future(master.lookup(ROOT_INO, name)) for name in names[1:]]
            await until(lambda: any(one.done() for one in others))
            assert store.waiting <= MAX_QUEUED_WRITES
            refused = [one.exception() for one in others if one.done()]
            assert {type(error) for error in refused} == {Unavailable}
            store.goes_on.set()
            assert (await first).inode is not None
            await asyncio.gather(*others, return_exceptions=True)
            assert (await master.lookup(ROOT_INO, names[-1])).inode is not None

    run(script())


def test_many_reports_for_a_disk_that_hangs_do_not_stop_the_loop(
    store: TroubledStore, origin: MemoryConnector
) -> None:
    """Each read that meets another version is one."""

    async def script() -> None:
        async with known(store, origin) as master:
            opened = await ino_of(master, b"a")
            store.goes_on.clear()
            reports = [
                asyncio.ensure_future(master.report_changed(opened))
                for _ in range(2 * MAX_QUEUED_WRITES)
            ]
            await until(lambda: any(one.done() for one in reports))
            assert store.waiting <= MAX_QUEUED_WRITES
            refused = [one.exception() for one in reports if one.done()]
            assert {type(error) for error in refused} == {Unavailable}
            store.goes_on.set()
            await asyncio.gather(*reports, return_exceptions=True)
            await master.report_changed(opened)

    run(script())
