"""The worker between an origin in memory and readers: every byte once, faults cost pages,
admission, segments, eviction by permission, changes at the origin, disks that fail."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import (
    AccessDenied,
    BadBody,
    NoSpace,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
    Unreachable,
)
from cachefs.core.model import PAGE_BYTES, Origin
from connectors.fetch.request import RangeRequest
from tests.services.loading import fetch
from tests.unit.worker.rig import (
    LIMIT_S,
    MIB,
    NAMESPACE,
    Rig,
    ensure,
    only,
    open_reader,
    read,
    run,
    until,
)
from worker.cache.cache import Cache
from worker.fill import segments
from worker.fill.source import OriginSource, Purpose, SourceBody
from worker.store.directory import TierDirectory
from worker.store.removal import evict
from worker.tier import admission as space

SMALL = 110 << 10


class ByThread:
    """The origin, and by which threads it was read: the size of each request."""

    def __init__(self, rig: Rig, gate: threading.Event | None = None) -> None:
        self.sizes: dict[str, list[int]] = {"load": [], "fetch": []}
        self._origin = OriginSource(lambda ns, key: rig.origin)
        self._gate = gate

    def waits_for_peers(self, origin: Origin, offset: int) -> int | None:
        return None

    def has_stand_in(self, origin: Origin, offset: int) -> bool:
        return False

    def ask(self, origin: Origin, offset: int, size: int) -> RangeRequest | None:
        return None

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        self.sizes[threading.current_thread().name.partition("-")[0]].append(size)
        if self._gate is not None:
            assert self._gate.wait(LIMIT_S)
        return self._origin.read(origin, offset, size, purpose)


def test_large_requests_have_threads_of_their_own(tmp_path: Path) -> None:
    """Those run little Python, and are not kept on the CPU of those that do."""

    async def script() -> None:
        rig = Rig(tmp_path, 300 * MIB)
        inos = [rig.put(1, SMALL), rig.put(2, 20 * MIB)]
        source = ByThread(rig)
        async with rig.worker(source) as worker:
            for ino in inos:
                assert await read(worker, ino) == rig.data[ino]
        assert source.sizes["fetch"].count(SMALL) == 1
        assert all(size <= MIB for size in source.sizes["fetch"])
        assert max(source.sizes["load"]) > MIB

    run(script())


def test_large_requests_go_to_the_other_threads_when_theirs_are_taken(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 300 * MIB, fetch_threads=1, load_threads=1)
        inos = [rig.put(n, 4 * MIB) for n in (1, 2)]
        gate = threading.Event()
        source = ByThread(rig, gate)
        async with rig.worker(source) as worker:
            reads = [asyncio.ensure_future(read(worker, ino)) for ino in inos]
            await until(lambda: all(source.sizes.values()))
            gate.set()
            assert await asyncio.gather(*reads) == [rig.data[ino] for ino in inos]

    run(script())


def test_every_byte_comes_once_and_right(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 300 * MIB)
        sizes = [1, 4096, SMALL, MIB, MIB + 1, 3 * MIB, 8 * MIB, 8 * MIB + 1, 30 * MIB + 5]
        inos = [rig.put(n, size) for n, size in enumerate(sizes, 1)]
        async with rig.worker() as worker:
            for ino in inos:
                assert await read(worker, ino) == rig.data[ino]
            assert rig.origin.script.body_bytes == sum(sizes)
            for ino in inos:
                assert (await fetch(worker, NAMESPACE, ino)).fetched_bytes == 0
            assert rig.published() == {rig.name(ino) for ino in inos}
            for ino in inos:
                assert await read(worker, ino) == rig.data[ino]
                assert await worker.cached_bytes(rig.content(ino)) == len(rig.data[ino])
            assert rig.origin.script.body_bytes == sum(sizes)
            status = worker.status()
            assert status["origin_bytes"] == sum(sizes)
            assert status["hits"] == len(sizes)
            assert status["fills_in_flight"] == status["reserved_bytes"] == 0
            assert rig.disk_bytes() <= status["used_bytes"] + 64 * 1024
            await only(worker).housekeeping.measure_overhead()

    run(script())


def test_empty_files_need_nothing(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, b"")
        async with rig.worker() as worker:
            grant = await worker.open(NAMESPACE, 1)
            assert (grant.size, grant.complete, grant.fd) == (0, True, None)
            ensured, fd = await worker.ensure(grant.handle, 0, 10)
            assert (ensured.end, fd) == (0, None)
            assert (await fetch(worker, NAMESPACE, 1)).fetched_bytes == 0
        assert not rig.origin.script.calls

    run(script())


@pytest.mark.parametrize("size", [SMALL, 20 * MIB])
def test_sixteen_readers_share_one_fill(tmp_path: Path, size: int) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, size)
        rig.origin.script.block("read")
        async with rig.worker() as worker:
            readers = [asyncio.ensure_future(read(worker, 1)) for _ in range(16)]
            await asyncio.to_thread(rig.origin.script.wait_blocked, "read")
            rig.origin.script.unblock()
            assert all(data == rig.data[1] for data in await asyncio.gather(*readers))
        assert rig.origin.script.body_bytes == size

    run(script())


def test_readers_of_everything_everywhere(tmp_path: Path) -> None:
    """16 readers at random places of one big file: every page comes once."""

    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB, seed=3)
        rig.put(1, 40 * MIB + 77)

        async def jump(worker: Cache) -> None:
            reader = await open_reader(worker, 1)
            for _ in range(40):
                offset = rig.random.randrange(len(rig.data[1]))
                size = rig.random.randrange(1, 2 * MIB)
                assert await reader.at(offset, size) == rig.data[1][offset : offset + size]
            reader.close()

        async with rig.worker() as worker:
            await asyncio.gather(*(jump(worker) for _ in range(16)))
            await until(lambda: worker.status()["fills_in_flight"] == 0)
        assert rig.origin.script.body_bytes == len(rig.data[1])

    run(script())


def test_random_reads_fetch_the_pages_they_touch(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 500 * MIB, seed=5)
        rig.put(1, 200 * MIB)
        async with rig.worker() as worker:
            reader = await open_reader(worker, 1)
            touched = set()
            for _ in range(60):
                page = rig.random.randrange(200)
                offset = page * PAGE_BYTES + rig.random.randrange(PAGE_BYTES - 4096)
                touched.add(page)
                assert await reader.at(offset, 4096) == rig.data[1][offset : offset + 4096]
            reader.close()
            await until(lambda: worker.status()["fills_in_flight"] == 0)
            assert await worker.cached_bytes(rig.content(1)) == rig.origin.script.body_bytes
        assert rig.origin.script.body_bytes <= 1.1 * len(touched) * PAGE_BYTES

    run(script())


def test_the_rest_comes_once_more_than_half_was_touched(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB)
        rig.put(1, 20 * MIB)
        async with rig.worker() as worker:
            reader = await open_reader(worker, 1)
            for page in (1, 19, 3, 17, 5, 15, 7, 13, 9):
                await reader.at(page * PAGE_BYTES + 5, 10)
            await until(lambda: worker.status()["fills_in_flight"] == 0)
            assert await worker.cached_bytes(rig.content(1)) == 9 * PAGE_BYTES
            await reader.at(11 * PAGE_BYTES, 10)
            await reader.at(0, 10)
            await until(lambda: rig.published() == {rig.name(1)})
            reader.close()
        assert rig.origin.script.body_bytes == 20 * MIB

    run(script())


@pytest.mark.parametrize("size", [5 * MIB, 24 * MIB])
def test_a_cut_costs_a_page_at_most(tmp_path: Path, size: int) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, size)
        path = rig.space.origins[1].path
        cuts = [MIB + 5, 2 * MIB + MIB // 2, 3, MIB]
        for after in cuts:
            rig.origin.script.cut(path, after)
        async with rig.worker() as worker:
            assert await read(worker, 1) == rig.data[1]
        assert size <= rig.origin.script.body_bytes <= size + len(cuts) * PAGE_BYTES

    run(script())


def test_an_origin_that_comes_back_in_time(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, 2 * MIB)
        rig.origin.script.fail("read", None, Unavailable("503"), times=4)
        async with rig.worker() as worker:
            assert await read(worker, 1) == rig.data[1]
        assert rig.origin.script.calls["read"] == 5

    run(script())


def test_an_origin_that_does_not_is_an_error_and_not_for_ever(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB, origin_deadline_s=0.1)
        rig.put(1, SMALL)
        rig.put(2, 20 * MIB)
        rig.origin.script.fail("read", None, Unreachable("refused"), times=10_000)
        async with rig.worker() as worker:
            with pytest.raises(Unreachable):
                await read(worker, 1)
            with pytest.raises(Unreachable):
                await read(worker, 2)
            with pytest.raises(Unreachable):
                await fetch(worker, NAMESPACE, 2)
            rig.origin.script._faults.clear()
            assert await read(worker, 1) == rig.data[1]
            assert await read(worker, 2) == rig.data[2]
            assert worker.status()["errors"]["unreachable"] >= 3

    run(script())


def test_errors_that_stay_are_told_at_once(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        rig.origin.script.fail("read", None, AccessDenied("403", request_id="R7"))
        async with rig.worker() as worker:
            with pytest.raises(AccessDenied, match="403"):
                await worker.open(NAMESPACE, 1)
            assert rig.origin.script.calls["read"] == 1
            assert await read(worker, 1) == rig.data[1]

    run(script())


@pytest.mark.parametrize("size", [SMALL, 20 * MIB])
@pytest.mark.parametrize("gone", [False, True])
def test_a_change_at_the_origin_is_stale_once(tmp_path: Path, size: int, gone: bool) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, size)
        before = rig.data[1]
        async with rig.worker() as worker:
            if size > 8 * MIB:
                reader = await open_reader(worker, 1)
                assert await reader.at(0, 10) == before[:10]
            if gone:
                rig.origin.delete(rig.space.origins[1].path)
            else:
                rig.origin.put(rig.space.origins[1].path, b"other bytes")
            if size > 8 * MIB:
                with pytest.raises(Stale):
                    await reader.at(15 * MIB, 10)
                assert await reader.at(0, 10) == before[:10], "its old bytes, or ESTALE"
                reader.close()
            else:
                with pytest.raises(Stale):
                    await worker.open(NAMESPACE, 1)
            assert rig.space.changed == [1]
            assert await worker.cached_bytes(rig.content(1)) == 0
            rig.put(1, size)
            assert await read(worker, 1) == rig.data[1]
            await until(lambda: worker.status()["tiers"][0]["unlinked_bytes"] == 0)
            assert rig.space.changed == [1]

    run(script())


def test_a_waiter_that_leaves_does_not_take_the_fill_along(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        rig.put(2, 20 * MIB)
        rig.origin.script.block("read")
        async with rig.worker() as worker:
            leaving = asyncio.ensure_future(worker.open(NAMESPACE, 1))
            staying = asyncio.ensure_future(read(worker, 1))
            big = await open_reader(worker, 2)
            leaving_too = asyncio.ensure_future(worker.ensure(big.grant.handle, 0, 10))
            fetching = asyncio.ensure_future(fetch(worker, NAMESPACE, 2))
            await asyncio.to_thread(rig.origin.script.wait_blocked, "read", 2)
            for task in (leaving, leaving_too, fetching):
                task.cancel()
            await asyncio.wait([leaving, leaving_too, fetching])
            rig.origin.script.unblock()
            assert await staying == rig.data[1]
            assert await big.at(0, 10) == rig.data[2][:10]
            big.close()
            assert rig.origin.script.calls_by_path["read", rig.space.origins[1].path] == 1

    run(script())


def test_unknown_handles_are_refused(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, 20 * MIB)
        async with rig.worker() as worker:
            reader = await open_reader(worker, 1)
            ensured, _ = await ensure(worker, reader.grant.handle, 30 * MIB, 10)
            assert ensured.start == ensured.end == 30 * MIB
            reader.close()
            worker.release(reader.grant.handle)
            with pytest.raises(ProtocolError):
                await worker.ensure(reader.grant.handle, 0, 10)
            with pytest.raises(Stale):
                await worker.open(NAMESPACE, 99)

    run(script())


# ---- admission, segments, eviction ---------------------------------------------------------------


def test_a_full_cache_refuses_and_everything_is_still_read(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=1)
        inos = [rig.put(n, 3 * MIB + n) for n in range(1, 41)] + [rig.put(99, 50 * MIB)]
        async with rig.worker() as worker:
            for ino in inos:
                assert await read(worker, ino) == rig.data[ino]
                assert rig.disk_bytes() <= 64 * MIB
            kept = {ino for ino in inos[:-1] if await worker.cached_bytes(rig.content(ino)) > 0}
            assert kept == set(range(1, len(kept) + 1)), "filled, then refused"
            assert len(kept) >= 15
            status = worker.status()
            assert status["refused"] > 0
            assert not status["evicted_files"]
            before = rig.origin.script.body_bytes
            for ino in kept:
                assert await read(worker, ino) == rig.data[ino]
            assert rig.origin.script.body_bytes == before
            assert rig.space.asked == []

    run(script())


def test_refused_files_are_shared_and_their_room_is_bounded(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 32 * MIB, seed=2)
        for n in range(1, 9):
            rig.put(n, 3 * MIB)
        rig.put(20, 60 * MIB)
        async with rig.worker() as worker:
            for n in range(1, 9):
                await read(worker, n)
            assert await worker.cached_bytes(rig.content(20)) == 0
            before = rig.origin.script.body_bytes
            readers = [read(worker, 20) for _ in range(4)]
            assert all(data == rig.data[20] for data in await asyncio.gather(*readers))
            shared = rig.origin.script.body_bytes - before
            assert shared <= 2.5 * 60 * MIB, "readers side by side share segments"
            tier = worker.status()["tiers"][0]
            assert tier["scratch_bytes"] <= tier["scratch_limit_bytes"]
            assert rig.disk_bytes() <= 32 * MIB

    run(script())


async def hold_all(rig: Rig, worker: Cache, held: list[tuple[int, Any]]) -> None:
    """Opens every file, and of those that come in segments keeps a descriptor of one."""
    for n in rig.data:
        reader = await open_reader(worker, n)
        held.append((n, reader))
        assert await reader.at(0, 2 * MIB) == rig.data[n]
        if not reader.grant.complete:
            offset = rig.random.randrange(2 * MIB)
            _, fd = await ensure(worker, reader.grant.handle, offset, 10)
            if fd is not None:
                held.append((n, fd))


def test_segments_that_are_held_are_not_taken(tmp_path: Path) -> None:
    """Clients keep descriptors of segments: their bytes stay right and accounted; readers that
    find no room there are given parts in memory."""

    async def script() -> None:
        rig = Rig(tmp_path, 16 * MIB, seed=4, origin_deadline_s=0.3)
        for n in range(1, 30):
            rig.put(n, 2 * MIB)
        async with rig.worker() as worker:
            held: list[tuple[int, Any]] = []
            await hold_all(rig, worker, held)
            assert only(worker).context.memory.segments_bytes > 0
            assert rig.disk_bytes() <= 16 * MIB
            for n, thing in held:
                if isinstance(thing, int):
                    os.close(thing)
                    continue
                if thing.grant.complete:
                    assert os.pread(thing.grant.fd, 2 * MIB, 0) == rig.data[n]
                thing.close()
            assert await read(worker, 29) == rig.data[29]

    run(script())


def test_what_nobody_waits_for_keeps_no_room_from_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that ask for more than they come for: what they have not read takes all the room."""
    monkeypatch.setattr(segments, "FRESH_S", float("inf"))

    async def script() -> None:
        rig = Rig(tmp_path, 16 * MIB, seed=4, origin_deadline_s=0.3)
        rig.put(1, 11 * MIB)
        for n in range(2, 10):
            rig.put(n, 12 * MIB)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)  # it fills the cache: a reader may leave some out
            readers = [await open_reader(worker, n) for n in range(2, 10)]
            held = []
            for reader in readers[:2]:
                held.append((await ensure(worker, reader.grant.handle, 0, 8 * MIB))[1])
                await until(lambda: worker.status()["fills_in_flight"] == 0)
            one = only(worker)
            assert one.contents.ledger.free_for_scratch < MIB, "there is no room"
            for n, reader in enumerate(readers[2:4], 4):
                assert await reader.at(0, 100) == rig.data[n][:100]
            for reader in readers:
                reader.close()
            for fd in held:
                if fd is not None:  # of a segment
                    os.close(fd)

    run(script())


def test_a_fill_for_which_room_is_short_brings_what_fits_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for its last page does not wait for the room of all pages before it."""
    monkeypatch.setattr(segments.Segments, "piece_pages", lambda self, readers: 8)

    async def script() -> None:
        rig = Rig(tmp_path, 16 * MIB, seed=4, origin_deadline_s=1000.0)
        rig.put(1, 11 * MIB)
        rig.put(2, 12 * MIB)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)  # it fills the cache: a reader may leave some out
            assert only(worker).contents.ledger.free_for_scratch < 8 * MIB
            reader = await open_reader(worker, 2)
            found, fd = await ensure(worker, reader.grant.handle, 0, 8 * MIB)
            assert 0 < found.end < 8 * MIB
            assert fd is not None
            await until(lambda: worker.status()["fills_in_flight"] == 0)
            os.close(fd)
            assert await reader.at(7 * MIB, 10) == rig.data[2][7 * MIB : 7 * MIB + 10]
            reader.close()

    run(script())


def test_an_eviction_that_nobody_waits_for_any_more_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on; what it evicted took room of the cache for ever."""
    evicting, go_on = threading.Event(), threading.Event()

    def evict_late(*arguments: Any) -> Any:
        evicting.set()
        assert go_on.wait(LIMIT_S)
        return evict(*arguments)

    monkeypatch.setattr(space, "evict", evict_late)

    async def script() -> None:
        rig = Rig(tmp_path, 32 * MIB, admission="always")
        for n in range(1, 9):
            rig.put(n, 3 * MIB)
        async with rig.worker() as worker:
            for n in range(1, 7):
                await read(worker, n)
            one = only(worker)
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            fetching = asyncio.ensure_future(only(worker)._space.reserve(8 * MIB))
            assert await asyncio.to_thread(evicting.wait, LIMIT_S)
            fetching.cancel()
            await asyncio.wait([fetching])
            go_on.set()
            await until(lambda: one.context.counters.evicted_files["space"] > 0)
            await asyncio.to_thread(one.disk.writer.write, [])
            records = dict(one.disk.directory.index.scan(b"", 100))
            assert set(one.contents.order.keys()) == set(records)
            kept_bytes = sum(record.allocated_bytes for record in records.values())
            assert one.contents.ledger.cached_bytes == kept_bytes
            assert one.contents.ledger.reserved_bytes == 0

    run(script())


def test_data_that_is_idle_for_long_yields(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, idle_after_s=3600.0)
        for n in range(1, 41):
            rig.put(n, 3 * MIB)
        async with rig.worker() as worker:
            for n in range(1, 21):
                await read(worker, n)
            first = {n for n in range(1, 21) if await worker.cached_bytes(rig.content(n))}
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            rig.wall_s += 4000
            used = sorted(first)[:3]
            worker.used([rig.name(n) for n in used], 3 * 3 * MIB)
            for n in range(21, 41):
                assert await read(worker, n) == rig.data[n]
            assert all([await worker.cached_bytes(rig.content(n)) for n in used]), "used lately"
            others = [n for n in first if n not in used]
            assert not any([await worker.cached_bytes(rig.content(n)) for n in others])
            assert worker.status()["evicted_files"]["idle"] == len(others)
            assert rig.disk_bytes() <= 64 * MIB

    run(script())


@pytest.mark.parametrize("order", ["sieve", "lru"])
def test_always_takes_the_new_and_keeps_what_is_protected_or_open(
    tmp_path: Path, order: str
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, admission="always", eviction=order)
        for n in range(1, 81):
            rig.put(n, 2 * MIB)
        async with rig.worker() as worker:
            await read(worker, 1)
            rig.space.protected.add(rig.name(1))
            await fetch(worker, NAMESPACE, 2)
            opened = await open_reader(worker, 2)
            for n in range(3, 81):
                assert await read(worker, n) == rig.data[n]
                assert rig.disk_bytes() <= 64 * MIB
            assert await worker.cached_bytes(rig.content(80)) == 2 * MIB
            assert await worker.cached_bytes(rig.content(1)) == 2 * MIB
            assert await worker.cached_bytes(rig.content(2)) == 2 * MIB
            assert rig.name(2) in rig.published(), "published again after the lease was refused"
            assert await worker.cached_bytes(rig.content(3)) == 0
            assert worker.status()["evicted_files"]["space"] > 40
            opened.close()
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            totals = only(worker).disk.directory.index.totals()
            assert totals.allocated_bytes == only(worker).contents.ledger.cached_bytes

    run(script())


@pytest.mark.parametrize("fault", ["silent", "short"])
def test_without_a_permission_nothing_goes(tmp_path: Path, fault: str) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 32 * MIB, admission="always")
        for n in range(1, 31):
            rig.put(n, 2 * MIB)
        if fault == "silent":
            rig.space.answers = False
        else:
            rig.space.valid_for_s = 0.0
        async with rig.worker() as worker:
            for n in range(1, 31):
                assert await read(worker, n) == rig.data[n], "reads go past the cache"
                if n == 10:  # from here on there is something that might go
                    await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            assert worker.status()["evicted_files"].get("space", 0) == 0
            assert await worker.cached_bytes(rig.content(1)) == 2 * MIB
            assert rig.space.asked

    run(script())


def test_data_of_a_source_that_is_not_attached_yields_when_idle(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 32 * MIB, admission="always")
        for n in range(1, 14):
            rig.put(n, 2 * MIB)
        async with rig.worker() as worker:
            for n in range(1, 14):
                await read(worker, n)
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)  # all might go
            rig.attached = False
            assert not await only(worker)._space.reserve(6 * MIB)
            rig.wall_s += 4000
            only(worker)._space._nothing_until_s = 0
            assert await only(worker)._space.reserve(6 * MIB)
            only(worker)._space.release(6 * MIB)
            assert worker.status()["evicted_files"]["space"] >= 3

    run(script())


def test_loads_that_do_not_fit_say_so(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, 30 * MIB)
        rig.put(2, 30 * MIB)
        async with rig.worker() as worker:
            result = await fetch(worker, NAMESPACE, 1)
            assert result.fetched_bytes == 30 * MIB
            assert rig.published() == {rig.name(1)}
            with pytest.raises(NoSpace):
                await fetch(worker, NAMESPACE, 2)
            assert rig.origin.script.body_bytes == 30 * MIB
            assert worker.status()["reserved_bytes"] == 0

    run(script())


def test_two_loads_and_a_reader_of_one_file(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB)
        rig.put(1, 50 * MIB + 3)
        async with rig.worker() as worker:
            *_, data = await asyncio.gather(
                fetch(worker, NAMESPACE, 1), fetch(worker, NAMESPACE, 1), read(worker, 1)
            )
            assert data == rig.data[1]
        assert rig.origin.script.body_bytes == 50 * MIB + 3

    run(script())


def test_free_drops_bytes_and_leaves_readers_alone(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        for n in range(1, 4):
            rig.put(n, 2 * MIB)
        rig.put(4, 20 * MIB)
        async with rig.worker() as worker:
            for n in range(1, 5):
                await fetch(worker, NAMESPACE, n)
            rig.put(5, 20 * MIB)
            opened = await open_reader(worker, 2)
            partial = await open_reader(worker, 5)
            await partial.at(0, 10)
            freed = await worker.free([rig.content(n) for n in range(1, 6)])
            assert (freed.files, freed.busy_files) == (5, 2)
            assert freed.bytes == 27 * MIB
            assert rig.published() == set()
            assert await opened.at(0, MIB) == rig.data[2][:MIB]
            assert await partial.at(0, 10) == rig.data[5][:10]
            assert await partial.at(15 * MIB, 10) == rig.data[5][15 * MIB : 15 * MIB + 10]
            tier = worker.status()["tiers"][0]
            assert tier["unlinked_bytes"] == 3 * MIB
            assert tier["cached_bytes"] == 0
            assert await read(worker, 2) == rig.data[2], "fetched anew"
            opened.close()
            partial.close()
            only(worker)._leftovers.check(urgent=True)
            await until(lambda: worker.status()["tiers"][0]["unlinked_bytes"] == 0)
            assert await worker.cached_bytes(rig.content(2)) == 2 * MIB

    run(script())


def test_free_in_the_middle_of_a_fill(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, 5 * MIB)
        async with rig.worker() as worker:
            for _ in range(20):
                reading = asyncio.ensure_future(read(worker, 1))
                await asyncio.sleep(rig.random.random() * 0.004)
                await worker.free([rig.content(1)])
                assert await reading == rig.data[1]
            await worker.free([rig.content(1)])
            await until(lambda: worker.status()["tiers"][0]["unlinked_bytes"] == 0)
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            assert worker.status()["tiers"][0]["cached_bytes"] == 0
            assert rig.published() == set()
            files = [
                name
                for fan in only(worker).disk.directory.fans()
                for name in os.listdir(rig.tier / "files" / fan)
            ]
            assert files == []

    run(script())


# ---- a disk that fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, 30 * MIB])
def test_a_full_disk_is_read_past(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: TierDirectory, *args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, size)
        rig.put(2, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 2)
            with monkeypatch.context() as patch:
                patch.setattr(TierDirectory, "create", full)
                patch.setattr(TierDirectory, "scratch_file", full)
                assert await read(worker, 1) == rig.data[1]
                assert await read(worker, 1) == rig.data[1]
                assert await read(worker, 2) == rig.data[2], "what is cached is read"
                assert worker.status()["tiers"][0]["state"] == "degraded"
            assert caplog.text.count("cache disk failed") == 1
            only(worker).disk.health._until_s = 0
            assert await read(worker, 1) == rig.data[1]
            await fetch(worker, NAMESPACE, 1)
            assert worker.status()["tiers"][0]["state"] == "normal"
            assert rig.published() == {rig.name(1), rig.name(2)}

    run(script())


def test_a_disk_that_fails_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, 6 * MIB)
        real, left = os.pwrite, [3]

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EIO, "Input/output error")
            return real(fd, data, offset)

        async with rig.worker() as worker:
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", pwrite)
                with pytest.raises(NoSpace):
                    await read(worker, 1)
            only(worker).disk.health._until_s = 0
            assert await read(worker, 1) == rig.data[1]
            await fetch(worker, NAMESPACE, 1)
            assert rig.published() == {rig.name(1)}

    run(script())


def test_an_index_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(changes: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        rig.put(2, 12 * MIB)
        async with rig.worker() as worker:
            with monkeypatch.context() as patch:
                patch.setattr(only(worker).disk.directory.index, "write", broken)
                assert await read(worker, 1) == rig.data[1]
                assert await read(worker, 2) == rig.data[2]
                await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
                assert worker.status()["tiers"][0]["state"] == "degraded"
                assert rig.published() == set()
            await until(lambda: worker.status()["tiers"][0]["unlinked_bytes"] == 0)
            only(worker).disk.health._until_s = 0
            await fetch(worker, NAMESPACE, 1)
            assert rig.published() == {rig.name(1)}
            assert only(worker).contents.ledger.cached_bytes == 112 << 10

    run(script())


def test_what_the_origin_answers_wrongly_never_becomes_bytes(tmp_path: Path) -> None:
    class Overlong:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __iter__(self) -> object:
            yield from self.inner  # type: ignore[attr-defined]
            yield memoryview(b"more")

        def close(self) -> None:
            self.inner.close()  # type: ignore[attr-defined]

    class Short(Overlong):
        def __iter__(self) -> object:
            yield next(iter(self.inner))[:-5]  # type: ignore[call-overload]

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB, origin_deadline_s=0.05)
        rig.put(1, SMALL)
        read_right = rig.origin.read
        async with rig.worker() as worker:
            for body in (Short,):
                rig.origin.read = lambda *a, body=body: body(read_right(*a))  # type: ignore[method-assign, misc]
                with pytest.raises(BadBody):
                    await worker.open(NAMESPACE, 1)
            rig.origin.read = lambda *a: Overlong(read_right(*a))  # type: ignore[method-assign, assignment]
            assert await read(worker, 1) == rig.data[1], "all pages were whole before"
            rig.origin.read = read_right  # type: ignore[method-assign]
            assert await read(worker, 1) == rig.data[1]
            with pytest.raises(NotFound):
                await only(worker).context.metadata(b"?" * 16).locate(1)  # type: ignore[arg-type]

    run(script())


def test_a_file_of_which_the_disk_did_not_say_what_is_cached_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index still knows its pages: in a new cache file they would be holes."""

    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB)
        rig.put(1, 40 * MIB)
        async with rig.worker() as worker:
            first = await open_reader(worker, 1)
            await first.at(5 * MIB, 3 * MIB)
            first.close()
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            with monkeypatch.context() as patch:
                patch.setattr(TierDirectory, "open_file", _fails)
                reader = await open_reader(worker, 1)
            only(worker).disk.health.returned()  # the pause after a fault is over
            for page in (20, 30):
                offset = page * MIB
                assert await reader.at(offset, 9) == rig.data[1][offset : offset + 9]
            reader.close()
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            assert await read(worker, 1) == rig.data[1]
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
        async with rig.worker() as worker:
            assert await read(worker, 1) == rig.data[1]

    run(script())


def _fails(*_: object) -> int:
    raise OSError(errno.EIO, "broken")
