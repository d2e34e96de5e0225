"""Pages of large files that a process of the tier downloads: the same bytes, accounts and errors as
with threads, which fetch what it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import xxhash

from cachefs.core.errors import Interrupted, Stale, Unreachable
from cachefs.core.pages import page_count
from tests.services.hanging_disk import hanging_disk
from tests.services.processes import families
from tests.services.small_origin import FAULTS, SmallOrigin
from tests.unit.worker import rig as rig_module
from tests.unit.worker.hang_reader import read_past_hangs
from tests.unit.worker.rig import LIMIT_S, MIB, NAMESPACE, Rig, only, read, until
from worker.cache.cache import Cache
from worker.cache.load_requests import Load, Loaded
from worker.cache.tier import CLOSE_WAIT_S
from worker.fill import downloads as module
from worker.fill.downloads import IDLE_S, Downloads
from worker.fill.fill import Filler
from worker.fill.transfer import PIECE_PAGES, Transfer
from worker.store.directory import TierDirectory
from worker.tier.entry import Entry

SMALL = 1000
LARGE = 20 * MIB + 12_345
SEED = random.SystemRandom().getrandbits(32)


@pytest.fixture
def origin() -> Iterator[SmallOrigin]:
    with SmallOrigin() as made:
        yield made


def run(origin: SmallOrigin, script: Awaitable[None]) -> None:
    """No descriptor, connection or process may be left."""
    before = set(families([os.getpid()]))

    async def whole() -> None:
        await script
        await until(lambda: origin.connections == 0)

    rig_module.run(whole())
    left = set(families([os.getpid()])) - before
    assert not left, "processes were left behind"


def downloads_of(worker: Cache) -> Downloads:
    return only(worker)._supply.downloads


def pids(worker: Cache) -> list[int]:
    """The processes of a worker that take orders."""
    return [one._process.pid for one in downloads_of(worker)._running if one.is_ready]


async def ready(worker: Cache) -> None:
    """Returns when a process takes orders."""
    downloads_of(worker)._start_process()
    await until(lambda: bool(pids(worker)))


@contextlib.asynccontextmanager
async def learning(
    place: Path, origin: SmallOrigin, *sizes: int, limit_bytes: int = 256 * MIB
) -> AsyncIterator[tuple[Rig, Cache]]:
    """A worker that has read a file, so that it knows the way to the others, whose numbers begin
    at 2; its process is ready."""
    print(f"seed {SEED}")
    rig = Rig(place, limit_bytes, SEED)
    rig.origin = origin.connector
    for ino, size in enumerate([SMALL, *sizes], 1):
        rig.put(ino, size)
    async with rig.worker() as worker:
        assert await read(worker, 1) == rig.data[1]
        await ready(worker)
        rig.origin.calls.clear()
        yield rig, worker


def path_of(rig: Rig, ino: int) -> bytes:
    return rig.space.origins[ino].path


def load(rig: Rig, worker: Cache, *inos: int) -> list[Loaded]:
    """Starts loads of files; the list has those that have ended."""
    ended: list[Loaded] = []
    for ino in inos:
        asked = Load(rig.space.origins[ino], -1, None, None, lambda: None, ended.append)
        worker.loading.load(asked)
    return ended


async def loaded(rig: Rig, worker: Cache, *inos: int) -> list[Loaded]:
    ended = load(rig, worker, *inos)
    await until(lambda: len(ended) == len(inos))
    return ended


async def right(rig: Rig, worker: Cache, *inos: int) -> None:
    """The cache has the files, with the checksums of their pages, and its accounts are right."""
    tier = only(worker)
    ledger, index = tier.contents.ledger, tier.disk.directory.index
    await until(lambda: worker.status()["fills_in_flight"] == 0)
    await until(lambda: ledger.cached_bytes == index.totals().allocated_bytes)
    await until(lambda: ledger.reserved_bytes == 0)
    ledger.check_invariants()
    tier.context.memory.check_invariants()
    for ino in inos:
        data, key = rig.data[ino], rig.content(ino).key
        sums = index.sums(key, len(data), 0, page_count(len(data)))
        parts = range(0, len(data), MIB)
        assert sums == {
            number: xxhash.xxh3_64_intdigest(data[start : start + MIB])
            for number, start in enumerate(parts)
        }
        assert (rig.tier / "pub" / rig.name(ino)).read_bytes() == data


# ---- what goes well ------------------------------------------------------------------------------


def test_loads_of_large_files_are_downloaded(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        sizes = [LARGE, 2 * MIB, MIB + 1, 8 * MIB, 8 * MIB + 1, 9 * MIB - 1]
        async with learning(place, origin, *sizes) as (rig, worker):
            inos = range(2, len(sizes) + 2)
            ended = await loaded(rig, worker, *inos)
            assert sorted(ended) == sorted(Loaded(size, None) for size in sizes)
            await right(rig, worker, *inos)
            assert (
                sum(size for size, _ in origin.ended) + rig.origin.calls["read"] >= sum(sizes) - MIB
            )
            assert {error for _, error in origin.ended} == {""}
            assert worker.status()["origin_bytes"] == SMALL + sum(sizes)
            # Only the last page of a file is a piece of its own, and a thread's.
            assert rig.origin.calls["read"] <= len(sizes)
            disk_bytes = worker.status()["used_bytes"]
            assert rig.disk_bytes() <= disk_bytes + 64 * 1024

    run(origin, script())


def test_readers_of_a_large_file_get_its_bytes(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        async with learning(place, origin, LARGE, LARGE) as (rig, worker):
            found = await asyncio.gather(*(read(worker, ino, MIB) for ino in (2, 3, 2, 3)))
            assert found == [rig.data[ino] for ino in (2, 3, 2, 3)]
            assert origin.began, "pages were downloaded"
            await right(rig, worker, 2, 3)
            assert worker.status()["origin_bytes"] == SMALL + 2 * LARGE

    run(origin, script())


def test_a_page_can_be_read_while_the_next_ones_are_missing(
    place: Path, origin: SmallOrigin
) -> None:
    """The process reports pages of a load at intervals, and at once those that a reader needs."""

    async def script() -> None:
        async with learning(place, origin, 8 * MIB) as (rig, worker):
            origin.stall_after(path_of(rig, 2), 3 * MIB + 5)
            ended = load(rig, worker, 2)
            entry_pages = {0, 1, 2}
            await until(
                lambda: (
                    set(only(worker)._catalog._live[rig.content(2).key].unrecorded) >= entry_pages
                )
            )
            pages = only(worker)._catalog._live[rig.content(2).key].pages
            assert not pages.has(3)
            origin.go_on()
            await until(lambda: len(ended) == 1)
            await right(rig, worker, 2)

    run(origin, script())


def test_an_idle_process_ends_and_another_one_starts(
    place: Path, origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        async with learning(place, origin, 8 * MIB, 8 * MIB) as (rig, worker):
            await loaded(rig, worker, 2)
            first = pids(worker)
            downloads_of(worker)._started_s -= IDLE_S
            await until(lambda: pids(worker) == [])
            await ready(worker)
            assert pids(worker) != first
            count = len(origin.began)
            await loaded(rig, worker, 3)
            assert len(origin.began) == count + 1
            await right(rig, worker, 2, 3)

    run(origin, script())


def test_a_process_is_ready_for_an_expected_download(place: Path, origin: SmallOrigin) -> None:
    """One is enough, and an idle one ends as any other does."""

    async def script() -> None:
        rig = Rig(place, 256 * MIB, SEED)
        rig.origin = origin.connector
        rig.put(1, SMALL)
        rig.put(2, 8 * MIB)
        async with rig.worker() as worker:
            worker.loading.expect_downloads()
            worker.loading.expect_downloads()
            await until(lambda: bool(pids(worker)))
            assert len(downloads_of(worker)._running) == 1
            assert await read(worker, 1) == rig.data[1]
            await loaded(rig, worker, 2)
            assert [size for size, _ in origin.ended if size > SMALL] == [8 * MIB]
            await right(rig, worker, 2)
            worker.loading.expect_downloads()
            assert downloads_of(worker)._loop.time() - downloads_of(worker)._started_s < LIMIT_S
            downloads_of(worker)._started_s -= IDLE_S
            await until(lambda: pids(worker) == [])

    run(origin, script())


def test_several_processes_share_the_downloads(
    place: Path, origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY", 1)

    async def script() -> None:
        sizes = [8 * MIB] * 12
        async with learning(place, origin, *sizes) as (rig, worker):
            downloads_of(worker)._processes = 3
            origin.hold()
            ended = load(rig, worker, 2, 3)
            await asyncio.to_thread(origin.wait_held, 2)
            await until(lambda: len(pids(worker)) == 2)
            ended += load(rig, worker, 4, 5)
            await until(lambda: len(pids(worker)) == 3)
            ended += load(rig, worker, *range(6, 14))
            running = downloads_of(worker)._running
            assert min(one.assigned for one in running) > 0
            assert len(running) == 3
            origin.go_on()
            await right(rig, worker, *range(2, 14))
            assert worker.status()["origin_bytes"] == SMALL + sum(sizes)

    run(origin, script())


def test_a_source_without_requests_is_read_by_threads(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        async with learning(place, origin, LARGE) as (rig, worker):
            origin.connector.asks = False
            assert await loaded(rig, worker, 2) == [Loaded(LARGE, None)]
            assert origin.began == []
            await right(rig, worker, 2)

    run(origin, script())


# ---- what does not come --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_thread_fetches_what_does_not_come(place: Path, origin: SmallOrigin, fault: str) -> None:
    """Pages that have come are not fetched again."""

    async def script() -> None:
        async with learning(place, origin, 8 * MIB) as (rig, worker):
            origin.fault(path_of(rig, 2), fault, times=2)  # libcurl retries on a kept connection
            assert [one.error for one in await loaded(rig, worker, 2)] == [None]
            assert origin.ended[-1][1], "an error was reported"
            await right(rig, worker, 2)
            assert rig.origin.calls["read"] == 1
            twice = worker.status()["origin_bytes"] - SMALL - 8 * MIB
            assert 0 <= twice < MIB

    run(origin, script())


@pytest.mark.parametrize("gone", [False, True])
def test_a_change_at_the_origin_is_stale(place: Path, origin: SmallOrigin, gone: bool) -> None:
    async def script() -> None:
        async with learning(place, origin, LARGE) as (rig, worker):
            path = path_of(rig, 2)
            if gone:
                rig.origin.delete(path)
            else:
                rig.origin.put(path, rig.random.randbytes(LARGE))
            (one,) = await loaded(rig, worker, 2)
            assert isinstance(one.error, Stale)
            assert rig.space.changed == [2]
            assert await worker.cached_bytes(rig.content(2)) == 0
            rig.put(2, LARGE)
            assert await read(worker, 2, MIB) == rig.data[2]

    run(origin, script())


def test_a_process_that_ends_leaves_its_downloads_to_threads(
    place: Path, origin: SmallOrigin
) -> None:
    async def script() -> None:
        async with learning(place, origin, LARGE, LARGE) as (rig, worker):
            origin.hold()
            ended = load(rig, worker, 2, 3)
            await asyncio.to_thread(origin.wait_held, 4)
            (pid,) = pids(worker)
            os.kill(pid, signal.SIGKILL)
            origin.go_on()
            await until(lambda: len(ended) == 2)
            assert [one.error for one in ended] == [None, None]
            await right(rig, worker, 2, 3)
            assert pids(worker) == []
            downloads_of(worker)._retry_at_s = 0.0
            rig.put(4, 8 * MIB)
            await ready(worker)
            origin.connector.turns._thread_reads_left = 0
            origin.connector.turns.succeeded(object())
            count = len(origin.served)
            await loaded(rig, worker, 4)
            assert len(origin.served) == count + 1
            await right(rig, worker, 2, 3, 4)

    run(origin, script())


def test_signals_to_the_group_of_the_worker_end_no_download(
    place: Path, origin: SmallOrigin
) -> None:
    """As Ctrl-C and a service manager send them: the worker decides when it ends."""

    async def script() -> None:
        async with learning(place, origin, LARGE) as (rig, worker):
            origin.hold()
            ended = load(rig, worker, 2)
            await asyncio.to_thread(origin.wait_held, 3)
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(pids(worker)[0], number)
            origin.go_on()
            await until(lambda: len(ended) == 1)
            assert {error for _, error in origin.ended} == {""}
            await right(rig, worker, 2)

    run(origin, script())


def test_a_process_that_hangs_is_ended(
    place: Path, origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.download.downloader.PROCESS_LIMIT_S", -1000.0)

    async def script() -> None:
        async with learning(place, origin, 8 * MIB) as (rig, worker):
            (pid,) = pids(worker)
            os.kill(pid, signal.SIGSTOP)
            assert [one.error for one in await loaded(rig, worker, 2)] == [None]
            assert pids(worker) == []
            await right(rig, worker, 2)

    run(origin, script())


def test_a_stalled_download_is_cut(
    place: Path, origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its readers get an error in time, and its room is given back after the process has ended
    it."""

    async def script() -> None:
        async with learning(place, origin, LARGE) as (rig, worker):
            origin.hold()
            opened = await worker.open(NAMESPACE, 2)
            asked = asyncio.ensure_future(worker.ensure(opened.handle, 0, 4 * MIB))
            await asyncio.to_thread(origin.wait_held, 1)
            count = len(origin.ended)
            only(worker)._filler.give_up_stalled(time.monotonic() + 1000.0)
            with pytest.raises(Unreachable):
                await asyncio.wait_for(asked, LIMIT_S)
            await until(lambda: len(origin.ended) > count)
            assert (0, "interrupted") in origin.ended
            await right(rig, worker)
            origin.go_on()
            if opened.fd is not None:
                os.close(opened.fd)
            worker.release(opened.handle)
            assert await read(worker, 2, MIB) == rig.data[2]
            await right(rig, worker, 2)

    run(origin, script())


# ---- disks ---------------------------------------------------------------------------------------


def test_a_disk_that_fails_the_write_is_read_past(
    place: Path, origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process gets a descriptor that it cannot write to."""
    opened: list[int] = []

    def open_file(self: Filler, entry: Entry, transfer: Transfer) -> int:
        self._make_file(entry, transfer)
        opened.append(os.open(f"/proc/self/fd/{entry.fd}", os.O_RDONLY))
        return opened[-1]

    async def script() -> None:
        async with learning(place, origin, LARGE, LARGE) as (rig, worker):
            with monkeypatch.context() as patch:
                patch.setattr(Filler, "_open_file", open_file)
                assert await read(worker, 2, MIB) == rig.data[2]
                assert opened
                assert worker.status()["tiers"][0]["state"] == "degraded"
                await until(lambda: worker.status()["fills_in_flight"] == 0)
            for fd in opened:
                os.close(fd)
            only(worker).disk.health._until_s = 0
            assert await read(worker, 3, MIB) == rig.data[3]
            await right(rig, worker)

    run(origin, script())


def test_a_full_disk_is_read_past(
    place: Path, origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: TierDirectory, *args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def script() -> None:
        async with learning(place, origin, LARGE) as (rig, worker):
            with monkeypatch.context() as patch:
                patch.setattr(TierDirectory, "create", full)
                patch.setattr(TierDirectory, "scratch_file", full)
                assert await read(worker, 2, MIB) == rig.data[2]
            await right(rig, worker)

    run(origin, script())


def test_reads_go_past_a_disk_that_hangs(tmp_path: Path, origin: SmallOrigin) -> None:
    """The process hangs in a write. Once the disk answers again, files are cached as before."""

    async def script(directory: Path, hang: Callable[[], None], go_on: Callable[[], None]) -> None:
        async with learning(directory, origin, LARGE, LARGE) as (rig, worker):
            origin.hold()
            reading = asyncio.ensure_future(read_past_hangs(worker, 2))
            await asyncio.to_thread(origin.wait_held, 1)
            hang()
            origin.go_on()
            try:
                await until(lambda: worker.status()["tiers"][0]["state"] == "offline")
                assert pids(worker) == []
                assert await reading == rig.data[2]
            finally:
                go_on()
            await until(lambda: worker.status()["tiers"][0]["state"] == "normal")
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            downloads_of(worker)._retry_at_s = 0.0
            assert await read(worker, 3, MIB) == rig.data[3]
            await right(rig, worker)

    with hanging_disk(tmp_path) as disk:
        run(origin, script(disk.path, disk.hang, disk.go_on))


def test_freed_while_it_is_on_its_way(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        async with learning(place, origin, LARGE) as (rig, worker):
            origin.hold()
            reading = asyncio.ensure_future(read(worker, 2, MIB))
            await asyncio.to_thread(origin.wait_held, 1)
            await worker.free([rig.content(1), rig.content(2)])
            origin.go_on()
            assert await reading == rig.data[2]
            await until(lambda: worker.status()["tiers"][0]["unlinked_bytes"] == 0)
            await right(rig, worker)

    run(origin, script())


# ---- the end -------------------------------------------------------------------------------------


def test_a_worker_that_closes_leaves_nothing_to_wait_for(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        print(f"pieces of {PIECE_PAGES} pages")
        async with learning(place, origin, LARGE) as (rig, worker):
            origin.hold()
            opened = await worker.open(NAMESPACE, 2)
            asked = asyncio.ensure_future(worker.ensure(opened.handle, 0, 4 * MIB))
            await asyncio.to_thread(origin.wait_held, 1)
            rig.origin.block("read")
            began_s = time.monotonic()
        assert time.monotonic() - began_s < CLOSE_WAIT_S, "it waited for the origin"
        with pytest.raises(Interrupted):
            await asyncio.wait_for(asked, LIMIT_S)
        if opened.fd is not None:
            os.close(opened.fd)
        only(worker).contents.ledger.check_invariants()
        origin.go_on()

    run(origin, script())


def test_a_worker_that_closes_while_bodies_come(place: Path, origin: SmallOrigin) -> None:
    """After a restart each byte is right, and what was durable is not fetched again."""

    async def script() -> None:
        async with learning(place, origin, *[LARGE] * 5) as (rig, worker):
            ended = load(rig, worker, *range(2, 7))
            await until(lambda: len(ended) > 0)
            whole = len(ended)
        async with rig.worker() as worker:
            for ino in range(2, 7):
                assert await read(worker, ino, MIB) == rig.data[ino]
            assert worker.status()["origin_bytes"] <= LARGE * (5 - whole)
            await right(rig, worker, *range(2, 7))

    run(origin, script())


def test_processes_that_end_again_and_again_are_started_ever_more_rarely(
    place: Path, origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update of a running server: the process has another version."""

    async def script() -> None:
        async with learning(place, origin, 8 * MIB, 8 * MIB) as (rig, worker):
            found = downloads_of(worker)
            found.end_processes()
            pauses_s = []
            with monkeypatch.context() as patch:
                patch.setattr("connectors.download.downloader.VERSION", "another")
                for _ in range(9):
                    found._retry_at_s = 0.0
                    found._start_process()
                    await until(lambda: not found._running)
                    pauses_s.append(round(found._retry_at_s - asyncio.get_running_loop().time()))
            assert pauses_s == [5, 10, 20, 40, 80, 160, 320, 600, 600]
            for _ in range(1100):  # a week and more
                found._start_later()
            assert found._retry_at_s <= asyncio.get_running_loop().time() + 600
            assert [one.error for one in await loaded(rig, worker, 2)] == [None], "by threads"
            found._retry_at_s = 0.0
            await ready(worker)
            count = len(origin.served)
            await loaded(rig, worker, 3)
            assert len(origin.served) == count + 1
            assert found._failures == 0
            await right(rig, worker, 2, 3)

    run(origin, script())
