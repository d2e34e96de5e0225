"""Small files that the loop reads, many at once: the same bytes, accounts and errors as with
threads, which read a file where the loop fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from cachefs.core.errors import (
    AccessDenied,
    CacheFSError,
    CredentialsMissing,
    Interrupted,
    Stale,
    Unavailable,
)
from cachefs.core.model import Origin
from connectors.fetch.request import AT_ONCE, RangeRequest
from tests.services.hanging_disk import hanging_disk
from tests.services.small_origin import FAULTS, SmallOrigin
from tests.unit.worker import rig as rig_module
from tests.unit.worker.rig import LIMIT_S, MIB, NAMESPACE, Rig, only, open_reader, until
from tests.unit.worker_peers.nodes import Cluster
from tests.unit.worker_tiers.rig import TiersRig
from worker.cache.cache import Cache
from worker.cache.load_requests import Load, Loaded
from worker.cache.loads import FREE_PLACES
from worker.cache.tier import CLOSE_WAIT_S, Tier
from worker.fill.source import OriginSource, Purpose, SourceBody
from worker.fill.transfer import DiskFault, Transfer
from worker.names.lazy_connector import AGAIN_S, LazyConnector
from worker.store.directory import TierDirectory
from worker.store.holds import Hold

SMALL = 110 << 10
SEED = random.SystemRandom().getrandbits(32)


@pytest.fixture
def origin() -> Iterator[SmallOrigin]:
    with SmallOrigin() as made:
        yield made


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, str]:
    """How each file got into the tier last: `store`, by the loop, or `run`, by a thread."""
    names: dict[bytes, str] = {}
    store, run = Transfer.store, Transfer.run

    def stores(self: Transfer, fd: int, body: memoryview) -> None:
        names[self._origin.path] = "store"
        store(self, fd, body)

    def runs(self: Transfer, source: Any, fd: int, purpose: Purpose) -> None:
        names[self._origin.path] = "run"
        run(self, source, fd, purpose)

    monkeypatch.setattr(Transfer, "store", stores)
    monkeypatch.setattr(Transfer, "run", runs)
    return names


def made_rig(directory: Path, origin: SmallOrigin, limit_bytes: int = 64 * MIB) -> Rig:
    print(f"seed {SEED}")
    rig = Rig(directory, limit_bytes, SEED)
    rig.origin = origin.connector
    return rig


def run(origin: SmallOrigin, script: Awaitable[None]) -> None:
    """No descriptor or thread of a worker may be left, and no connection to the origin."""

    async def whole() -> None:
        await script
        await until(lambda: origin.connections == 0)

    rig_module.run(whole())
    # The end of a thread is seen a moment after its last call.
    for thread in threading.enumerate():
        if thread.name.startswith(("fetch-", "ask-", "load-")):
            thread.join(LIMIT_S)
            assert not thread.is_alive(), thread.name


async def read(worker: Cache, ino: int) -> bytes:
    """All of a file."""
    return await rig_module.read(worker, ino)


async def read_in(tier: Tier, rig: Rig, ino: int) -> bytes:
    """The same, in one of several tiers."""
    opened = await tier.opens.open(rig.space.origins[ino], past_tier=False)
    assert opened.fd is not None
    with open(opened.fd, "rb") as file:
        return file.read()


async def learnt(worker: Cache, rig: Rig, ino: int) -> None:
    """The first small file of the source: an ordinary thread reads it."""
    before = rig.origin.calls["read"]
    assert await read(worker, ino) == rig.data[ino]
    assert rig.origin.calls["read"] == before + 1


@contextlib.asynccontextmanager
async def learning(
    place: Path, origin: SmallOrigin, files: int
) -> AsyncIterator[tuple[Rig, Cache]]:
    """A worker that has read the first of some small files, and so knows the way to the others."""
    rig = made_rig(place, origin)
    for ino in range(1, files + 1):
        rig.put(ino, SMALL)
    async with rig.worker() as worker:
        await learnt(worker, rig, 1)
        yield rig, worker


def path_of(rig: Rig, ino: int) -> bytes:
    return rig.space.origins[ino].path


async def recorded(worker: Cache) -> None:
    """The index has everything, and the accounts agree with it."""
    ledger, index = only(worker).contents.ledger, only(worker).disk.directory.index
    await until(lambda: worker.status()["fills_in_flight"] == 0)
    await until(lambda: ledger.cached_bytes == index.totals().allocated_bytes)
    ledger.check_invariants()
    only(worker).context.memory.check_invariants()
    assert ledger.reserved_bytes == 0


async def published(rig: Rig, names: set[str]) -> None:
    """A file is published a moment after the index has it."""
    await until(lambda: rig.published() >= names)
    assert rig.published() == names


# ---- what goes well ------------------------------------------------------------------------------


def test_after_the_first_file_of_a_source_one_thread_reads_them(
    place: Path, origin: SmallOrigin, stored: dict[bytes, str]
) -> None:
    async def script() -> None:
        rig = made_rig(place, origin)
        sizes = [SMALL, 1, 4096, 65_537, MIB - 1, MIB, *range(100_000, 100_030)]
        inos = [rig.put(number, size) for number, size in enumerate(sizes, 1)]
        async with rig.worker() as worker:
            await learnt(worker, rig, 1)
            assert origin.began == []
            found = await asyncio.gather(*(read(worker, ino) for ino in inos[1:]))
            assert found == [rig.data[ino] for ino in inos[1:]]
            assert rig.origin.calls["read"] == 1
            assert sorted(origin.served) == sorted(path_of(rig, ino) for ino in inos[1:])
            assert sorted(origin.ended) == sorted((size, "") for size in sizes[1:])
            await recorded(worker)
            status = worker.status()
            assert status["origin_bytes"] == sum(sizes)
            assert status["origin_requests"] == len(sizes)
            await published(rig, {rig.name(ino) for ino in inos})
            assert rig.disk_bytes() <= status["used_bytes"] + 64 * 1024
            for ino in inos:
                key = rig.content(ino).key
                sums = only(worker).disk.directory.index.sums(key, len(rig.data[ino]), 0, 1)
                assert sums == {0: xxhash.xxh3_64_intdigest(rig.data[ino])}
        assert {stored[path_of(rig, ino)] for ino in inos[1:]} == {"store"}
        async with rig.worker() as worker:
            for ino in inos:
                assert await read(worker, ino) == rig.data[ino]
            assert worker.status()["origin_bytes"] == 0
        assert rig.origin.calls["read"] == 1
        assert len(origin.began) == len(inos) - 1

    run(origin, script())


def test_sixteen_readers_of_one_file_share_one_request(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        async with learning(place, origin, 2) as (rig, worker):
            origin.hold()
            readers = [asyncio.ensure_future(read(worker, 2)) for _ in range(16)]
            await asyncio.to_thread(origin.wait_held, 1)
            origin.go_on()
            assert await asyncio.gather(*readers) == [rig.data[2]] * 16
            assert len(origin.began) == 1
            assert worker.status()["origin_bytes"] == 2 * SMALL

    run(origin, script())


def test_what_is_on_its_way_takes_places_from_files_ahead(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        rig = made_rig(place, origin)
        inos = [rig.put(number, SMALL) for number in range(1, 13)]
        async with rig.worker(fetch_threads=50) as worker:
            assert worker.loading.places_ahead() == 50 - FREE_PLACES, "by threads"
            await learnt(worker, rig, 1)
            assert await read(worker, inos.pop()) == rig.data[12]
            assert worker.loading.places_ahead() == AT_ONCE - FREE_PLACES
            origin.hold()
            readers = [asyncio.ensure_future(read(worker, ino)) for ino in inos[1:]]
            await asyncio.to_thread(origin.wait_held, 10)
            assert worker.loading.places_ahead() == AT_ONCE - FREE_PLACES - 10
            origin.go_on()
            await asyncio.gather(*readers)
            await recorded(worker)
            assert worker.loading.places_ahead() == AT_ONCE - FREE_PLACES

    run(origin, script())


def test_a_source_that_cannot_be_asked_so_is_read_by_threads(
    place: Path, origin: SmallOrigin
) -> None:
    async def script() -> None:
        origin.connector.asks = False
        rig = made_rig(place, origin)
        async with rig.worker() as worker:
            for ino in range(1, 6):
                rig.put(ino, SMALL)
                assert await read(worker, ino) == rig.data[ino]
            assert rig.origin.calls["read"] == 5
        assert origin.began == []

    run(origin, script())


# ---- what does not come --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_come_is_read_by_a_thread_and_then_it_goes_on(
    place: Path, origin: SmallOrigin, fault: str, stored: dict[bytes, str]
) -> None:
    async def script() -> None:
        rig = made_rig(place, origin)
        for ino in range(1, 6):
            rig.put(ino, SMALL)
        async with rig.worker() as worker:
            await learnt(worker, rig, 1)
            assert await read(worker, 2) == rig.data[2]
            assert rig.origin.calls["read"] == 1
            origin.fault(path_of(rig, 3), fault, times=2)  # a kept connection is tried again
            assert await read(worker, 3) == rig.data[3]
            assert rig.origin.calls["read"] == 2
            assert stored[path_of(rig, 3)] == "run"
            assert origin.ended[-1][1], "an error was told"
            for ino in (4, 5):
                assert await read(worker, ino) == rig.data[ino]
            assert rig.origin.calls["read"] == 2, "it has learnt again"
            await recorded(worker)
            assert worker.status()["origin_bytes"] == 5 * SMALL
            assert worker.status()["origin_requests"] == 5
            await published(rig, {rig.name(ino) for ino in range(1, 6)})

    run(origin, script())


def test_an_origin_that_never_answers_so_is_hardly_asked(
    tmp_path: Path, origin: SmallOrigin
) -> None:
    """Else each file would be asked for twice."""

    async def script() -> None:
        rig = made_rig(tmp_path, origin)
        files = 400
        for ino in range(1, files + 1):
            rig.put(ino, 5000)
            origin.fault(path_of(rig, ino), "other-version", times=100)
        async with rig.worker() as worker:
            for ino in range(1, files + 1):
                assert await read(worker, ino) == rig.data[ino]
            assert rig.origin.calls["read"] == files
            asked = [2, 3, 5, 9, 17, 33, 65, 129, 257]
            assert origin.began == [path_of(rig, ino) for ino in asked]
            # It answers as it should from now on, and is read so before long.
            origin.connector.turns._thread_reads_left = 1
            for ino in range(files + 1, files + 4):
                rig.put(ino, 5000)
                assert await read(worker, ino) == rig.data[ino]
            assert len(origin.served) == 2
            assert origin.connector.turns._failures == 0

    run(origin, script())


def test_many_that_fail_at_once_are_one_failure(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        rig = made_rig(place, origin)
        inos = [rig.put(number, 5000) for number in range(1, AT_ONCE + 2)]
        async with rig.worker() as worker:
            await learnt(worker, rig, 1)
            for ino in inos[1:]:
                origin.fault(path_of(rig, ino), "503")
            origin.hold()
            readers = [asyncio.ensure_future(read(worker, ino)) for ino in inos[1:]]
            await asyncio.to_thread(origin.wait_held, AT_ONCE)
            rig.origin.block("read")
            origin.go_on()
            await until(lambda: len(origin.ended) == len(inos) - 1)
            assert origin.connector.turns._failures == 1
            rig.origin.unblock()
            assert await asyncio.gather(*readers) == [rig.data[ino] for ino in inos[1:]]
            await recorded(worker)

    run(origin, script())


@pytest.mark.parametrize("gone", [False, True])
def test_a_change_at_the_origin_is_stale_once(place: Path, origin: SmallOrigin, gone: bool) -> None:
    async def script() -> None:
        async with learning(place, origin, 3) as (rig, worker):
            path = path_of(rig, 2)
            if gone:
                rig.origin.delete(path)
            else:
                rig.origin.put(path, rig.random.randbytes(SMALL))
            with pytest.raises(Stale):
                await worker.open(NAMESPACE, 2)
            assert rig.space.changed == [2]
            assert path in origin.began
            assert await worker.cached_bytes(rig.content(2)) == 0
            rig.put(2, SMALL)
            assert await read(worker, 2) == rig.data[2]
            assert await read(worker, 3) == rig.data[3]
            assert path_of(rig, 3) in origin.served, "it has learnt again"
            await recorded(worker)
            assert rig.space.changed == [2]

    run(origin, script())


@pytest.mark.parametrize("error", [AccessDenied("no"), Unavailable("not now")])
def test_an_origin_that_fails_both_ways_is_an_error_and_not_for_ever(
    place: Path, origin: SmallOrigin, error: CacheFSError
) -> None:
    async def script() -> None:
        rig = made_rig(place, origin)
        for ino in (1, 2, 3):
            rig.put(ino, SMALL)
        async with rig.worker(origin_deadline_s=0.2) as worker:
            await learnt(worker, rig, 1)
            origin.fault(path_of(rig, 2), "503", times=100)
            rig.origin.fail("read", path_of(rig, 2), error, times=100)
            with pytest.raises(type(error)):
                await worker.open(NAMESPACE, 2)
            assert origin.began.count(path_of(rig, 2)) == 1
            assert await read(worker, 3) == rig.data[3]
            await recorded(worker)

    run(origin, script())


def test_many_faults_among_many_readers(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        rig = made_rig(place, origin)
        inos = [rig.put(number, rig.random.randrange(1, 200_000)) for number in range(1, 151)]
        for ino in rig.random.sample(inos, 30):
            origin.fault(path_of(rig, ino), rig.random.choice(FAULTS))

        async def reader(worker: Cache, order: list[int]) -> None:
            for ino in order:
                assert await read(worker, ino) == rig.data[ino]

        async with rig.worker() as worker:
            orders = [rig.random.sample(inos, len(inos)) for _ in range(8)]
            await asyncio.gather(*(reader(worker, order) for order in orders))
            await recorded(worker)
            assert worker.status()["origin_bytes"] == sum(len(rig.data[ino]) for ino in inos)
            assert len(origin.served) > len(inos) // 4
            await published(rig, {rig.name(ino) for ino in inos})

    run(origin, script())


# ---- what is not asked for so --------------------------------------------------------------------


class Waits:
    """The origin, whose readers wait for peers (`epoch`)."""

    def __init__(self, origin: SmallOrigin, epoch: int | None) -> None:
        self.epoch = epoch
        self._then = OriginSource(lambda ns, key: origin.connector)

    def waits_for_peers(self, origin: Origin, offset: int) -> int | None:
        return self.epoch

    def has_stand_in(self, origin: Origin, offset: int) -> bool:
        return False

    def ask(self, origin: Origin, offset: int, size: int) -> RangeRequest | None:
        return self._then.ask(origin, offset, size)

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        return self._then.read(origin, offset, size, purpose)


def test_what_peers_bring_first_is_not_asked_of_the_origin(
    place: Path, origin: SmallOrigin
) -> None:
    async def script() -> None:
        rig = made_rig(place, origin)
        for ino in (1, 2, 3):
            rig.put(ino, SMALL)
        source = Waits(origin, None)
        async with rig.worker(source) as worker:
            await learnt(worker, rig, 1)
            source.epoch = 5
            await learnt(worker, rig, 2)
            assert origin.began == []
            source.epoch = None
            assert await read(worker, 3) == rig.data[3]
            assert origin.began == [path_of(rig, 3)]

    run(origin, script())


def test_a_migration_does_not_ask_the_origin(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        async with learning(place, origin, 2) as (rig, worker):
            bring = worker.serving.bring
            assert await bring(NAMESPACE, 2, 0, 1, peers_only=True) == 0
            assert origin.began == []
            await recorded(worker)
            assert await bring(NAMESPACE, 2, 0, 1, peers_only=False) == 1
            assert origin.began == [path_of(rig, 2)]

    run(origin, script())


def test_files_that_peers_have_come_from_them(tmp_path: Path, origin: SmallOrigin) -> None:
    """Each file leaves the origin once, whichever way its owner got it, before and after a node
    joined."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 3)
        rig = cluster.rig
        rig.origin = origin.connector
        inos = [rig.put(number, SMALL) for number in range(1, 41)]
        async with cluster.running() as nodes:
            cluster.set_view([0, 1])
            for ino in inos:
                for node in nodes[:2]:
                    assert await read(node.worker, ino) == rig.data[ino]
            assert origin.served, "owners have asked so"
            assert len(origin.served) + rig.origin.calls["read"] == len(inos)
            before = [*origin.began], rig.origin.calls["read"]
            cluster.set_view([0, 1, 2], before=[0, 1])
            assert any(cluster.owner(ino) is nodes[2] for ino in inos)
            for ino in inos:
                assert await read(nodes[2].worker, ino) == rig.data[ino]
            assert (origin.began, rig.origin.calls["read"]) == before
            for node in nodes:
                only(node.worker).contents.ledger.check_invariants()

    run(origin, script())


def test_what_load_jobs_bring_comes_so(place: Path, origin: SmallOrigin) -> None:

    async def script() -> None:
        rig = made_rig(place, origin)
        inos = [rig.put(number, SMALL) for number in range(1, 12)]
        async with rig.worker() as worker:
            await learnt(worker, rig, 1)
            loaded: list[Loaded] = []
            for ino in inos[1:]:
                found = rig.space.origins[ino]
                hold = Hold(rig.wall_s + 3600.0)
                worker.loading.load(Load(found, -1, hold, None, lambda: None, loaded.append))
            await until(lambda: len(loaded) == 10)
            assert loaded == [Loaded(SMALL, None)] * 10
            assert sorted(origin.began) == sorted(path_of(rig, ino) for ino in inos[1:])
            assert rig.origin.calls["read"] == 1
            assert rig.published() == {rig.name(ino) for ino in inos}, "they are durable"
            for ino in inos:
                assert await read(worker, ino) == rig.data[ino]
            assert len(origin.began) == 10
            await recorded(worker)

    run(origin, script())


def test_files_that_another_tier_has_come_from_there(tmp_path: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 40 * MIB, 40 * MIB, seed=SEED)
        rig.origin = origin.connector
        inos = [rig.put(number, SMALL) for number in range(1, 7)]
        async with rig.tiers() as tiers:
            one, two = tiers._tiers.running
            for ino in inos[:3]:
                assert await read_in(two, rig, ino) == rig.data[ino]
            ledger, index = two.contents.ledger, two.disk.directory.index
            await until(lambda: ledger.cached_bytes == index.totals().allocated_bytes > 0)
            assert origin.began == [path_of(rig, ino) for ino in inos[1:3]]
            assert await read_in(one, rig, inos[3]) == rig.data[inos[3]]
            assert len(origin.began) == 3
            for ino in inos[:3]:
                assert await read_in(one, rig, ino) == rig.data[ino]
            assert one.status()["origin_bytes"] == SMALL
            assert len(origin.began) == 3, "of files that another tier has nothing is asked"
            for ino in inos[4:]:
                assert await read_in(one, rig, ino) == rig.data[ino]
            assert rig.origin.calls["read"] == 1
            assert origin.began[-1] == path_of(rig, inos[5])

    run(origin, script())


def test_a_late_connector_is_not_asked_before_it_is_found_nor_after_a_refusal(
    origin: SmallOrigin,
) -> None:
    now = [0.0]
    version = origin.connector.put(b"x", b"12345")
    late = LazyConnector(lambda: origin.connector, clock=lambda: now[0])
    assert late.ask(b"x", 0, version.size, version) is None
    assert bytes(late.read_all(b"x", version)) == b"12345"
    assert late.ask(b"x", 0, version.size, version) is not None
    for error in (AccessDenied("no"), CredentialsMissing("none")):
        origin.connector.fail("read", b"x", error)
        with pytest.raises(type(error)):
            late.read_all(b"x", version)
        assert late.ask(b"x", 0, version.size, version) is None
        now[0] += AGAIN_S
        assert bytes(late.read_all(b"x", version)) == b"12345"
        assert late.ask(b"x", 0, version.size, version) is not None


# ---- disks ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def failing_writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tier's disk takes no small files."""

    def fail(self: Transfer, fd: int, body: memoryview) -> None:
        raise DiskFault(OSError(errno.EIO, "Input/output error"))

    with monkeypatch.context() as patch:
        patch.setattr(Transfer, "store", fail)
        yield


def test_a_disk_that_fails_the_write_is_read_past(
    place: Path, origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = made_rig(place, origin)
        inos = [rig.put(number, SMALL) for number in range(1, 12)]
        async with rig.worker() as worker:
            await learnt(worker, rig, 1)
            with failing_writes(monkeypatch):
                found = await asyncio.gather(*(read(worker, ino) for ino in inos[1:10]))
                assert found == [rig.data[ino] for ino in inos[1:10]]
                assert origin.served, "the loop read them"
                assert worker.status()["tiers"][0]["state"] == "degraded"
            await recorded(worker)
            await published(rig, {rig.name(1)})
            only(worker).disk.health._until_s = 0
            assert await read(worker, 11) == rig.data[11]
            assert worker.status()["tiers"][0]["state"] == "normal"
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            await recorded(worker)

    run(origin, script())


def test_a_full_disk_is_read_past(
    place: Path, origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: TierDirectory, *args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def script() -> None:
        rig = made_rig(place, origin)
        inos = [rig.put(number, SMALL) for number in range(1, 10)]
        async with rig.worker() as worker:
            await learnt(worker, rig, 1)
            with monkeypatch.context() as patch:
                patch.setattr(TierDirectory, "create", full)
                patch.setattr(TierDirectory, "scratch_file", full)
                found = await asyncio.gather(*(read(worker, ino) for ino in inos[1:]))
                assert found == [rig.data[ino] for ino in inos[1:]]
            await recorded(worker)
            await published(rig, {rig.name(1)})

    run(origin, script())


@pytest.mark.parametrize("when", ["as files are made", "as they are written"])
def test_reads_go_past_a_disk_that_hangs(tmp_path: Path, origin: SmallOrigin, when: str) -> None:
    """Once it answers again, small files are read as before."""

    async def script(directory: Path, hang: Callable[[], None], go_on: Callable[[], None]) -> None:
        rig = made_rig(directory, origin, 100 * MIB)
        inos = [rig.put(number, SMALL) for number in range(1, 12)]
        async with rig.worker() as worker:
            await learnt(worker, rig, 1)
            if when == "as they are written":
                origin.hold()
                opening = asyncio.gather(*(worker.open(NAMESPACE, ino) for ino in inos[1:9]))
                await asyncio.to_thread(origin.wait_held, 8)
                hang()
                origin.go_on()
            else:
                hang()
                opening = asyncio.gather(*(worker.open(NAMESPACE, ino) for ino in inos[1:9]))
            try:
                opened = await opening
                assert worker.status()["tiers"][0]["state"] == "offline"
                for ino, grant in zip(inos[1:9], opened, strict=True):
                    ensured, fd = await worker.ensure(grant.handle, 0, SMALL, past_tier=True)
                    assert fd is not None
                    got = os.pread(fd, SMALL, -ensured.base)
                    os.close(fd)
                    assert got == rig.data[ino]
                    if grant.fd is not None:
                        os.close(grant.fd)
                    worker.release(grant.handle)
            finally:
                go_on()
            await until(lambda: worker.status()["tiers"][0]["state"] == "normal")
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            origin.connector.turns._failures = 0
            assert await read(worker, 10) == rig.data[10]
            assert await read(worker, 11) == rig.data[11]
            assert path_of(rig, 11) in origin.served
            await recorded(worker)

    with hanging_disk(tmp_path) as disk:
        run(origin, script(disk.path, disk.hang, disk.go_on))


def test_what_was_asked_for_before_the_tier_left_never_enters_it(
    place: Path, origin: SmallOrigin
) -> None:
    async def script() -> None:
        async with learning(place, origin, 2) as (rig, worker):
            origin.hold()
            opening = asyncio.ensure_future(worker.open(NAMESPACE, 2))
            await asyncio.to_thread(origin.wait_held, 1)
            only(worker)._filler.leave_tier()
            origin.go_on()
            grant = await asyncio.wait_for(opening, LIMIT_S)
            if grant.fd is not None:
                os.close(grant.fd)
            worker.release(grant.handle)
            assert await read(worker, 2) == rig.data[2]
            await recorded(worker)

    run(origin, script())


def test_freed_while_it_is_on_its_way(place: Path, origin: SmallOrigin) -> None:
    async def script() -> None:
        async with learning(place, origin, 2) as (rig, worker):
            origin.hold()
            reading = asyncio.ensure_future(read(worker, 2))
            await asyncio.to_thread(origin.wait_held, 1)
            await worker.free([rig.content(1), rig.content(2)])
            origin.go_on()
            assert await reading == rig.data[2]
            await until(lambda: worker.status()["tiers"][0]["unlinked_bytes"] == 0)
            await recorded(worker)
            assert await read(worker, 2) == rig.data[2]

    run(origin, script())


# ---- the end -------------------------------------------------------------------------------------


def test_a_worker_that_closes_leaves_nothing_to_wait_for(place: Path, origin: SmallOrigin) -> None:
    """Reads that are given back are not begun anew at an origin that hangs."""

    async def script() -> None:
        rig = made_rig(place, origin)
        inos = [rig.put(number, 5000) for number in range(1, AT_ONCE + 2)]
        async with rig.worker() as worker:
            await learnt(worker, rig, 1)
            origin.hold()
            readers = [asyncio.ensure_future(worker.open(NAMESPACE, ino)) for ino in inos[1:]]
            await asyncio.to_thread(origin.wait_held, AT_ONCE)
            rig.origin.block("read")
            began_s = time.monotonic()
        assert time.monotonic() - began_s < CLOSE_WAIT_S, "it waited for the origin"
        for found in await asyncio.gather(*readers, return_exceptions=True):
            assert isinstance(found, Interrupted)
        assert rig.origin.calls["read"] == 1
        only(worker).contents.ledger.check_invariants()
        assert rig.published() == {rig.name(1)}
        origin.go_on()

    run(origin, script())


def test_a_worker_that_closes_while_bodies_come(place: Path, origin: SmallOrigin) -> None:
    """What was acknowledged is there after a restart, and the rest is read again."""

    async def script() -> None:
        rig = made_rig(place, origin)
        inos = [rig.put(number, SMALL) for number in range(1, 101)]
        got: set[int] = set()

        async def reader(worker: Cache, ino: int) -> None:
            assert await read(worker, ino) == rig.data[ino]
            got.add(ino)

        async with rig.worker() as worker:
            await learnt(worker, rig, 1)
            readers = [asyncio.ensure_future(reader(worker, ino)) for ino in inos[1:]]
            await until(lambda: len(got) > 10)
        for found in await asyncio.gather(*readers, return_exceptions=True):
            assert found is None or isinstance(found, CacheFSError), found
        only(worker).contents.ledger.check_invariants()
        assert rig.published() >= {rig.name(ino) for ino in got}
        async with rig.worker() as worker:
            for ino in inos:
                assert await read(worker, ino) == rig.data[ino]
            await recorded(worker)
            assert worker.status()["origin_bytes"] <= SMALL * (len(inos) - len(got))

    run(origin, script())


def test_a_reader_that_leaves_does_not_take_the_fill_along(
    place: Path, origin: SmallOrigin
) -> None:
    async def script() -> None:
        async with learning(place, origin, 2) as (rig, worker):
            origin.hold()
            leaving = asyncio.ensure_future(worker.open(NAMESPACE, 2))
            await asyncio.to_thread(origin.wait_held, 1)
            leaving.cancel()
            await asyncio.wait([leaving])
            origin.go_on()
            await until(lambda: rig.name(2) in rig.published())
            await recorded(worker)
            reader = await open_reader(worker, 2)
            assert reader.grant.complete
            reader.close()
            assert len(origin.began) == 1

    run(origin, script())
