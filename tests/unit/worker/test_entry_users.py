"""The users of an entry of a tier: it is not retired while a call works on it, nor does it stay
without one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from cachefs.core.model import PAGE_BYTES
from tests.services.loading import fetch
from tests.unit.worker.rig import (
    MIB,
    NAMESPACE,
    Rig,
    only,
    open_reader,
    read,
    recorded,
    run,
    until,
)
from tests.unit.worker_tiers.rig import come_back, leave
from worker.cache.cache import Cache
from worker.cache.grants import Grant

SMALL = 100_000
PAGES = 16  # a smaller file is brought whole by its open


async def open_without_its_last_page(rig: Rig, worker: Cache, ino: int) -> Grant:
    """Opens a file of which the other pages are recorded."""
    assert await worker.serving.bring(NAMESPACE, ino, 0, PAGES - 1, peers_only=False) == PAGES - 1
    await recorded(worker)
    grant = await worker.open(NAMESPACE, ino)
    assert grant.fd is not None
    os.close(grant.fd)
    return grant


def test_a_handle_that_ends_with_its_read_costs_no_cached_page(tmp_path: Path) -> None:
    """As when a client is killed before it has the reply: the worker completes the file."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        ino = rig.put(1, PAGES * PAGE_BYTES)
        async with rig.worker() as worker:
            grant = await open_without_its_last_page(rig, worker, ino)
            await worker.ensure(grant.handle, 8 * PAGE_BYTES, 1)
            worker.release(grant.handle)  # in the same turn of the loop
            await until(lambda: rig.origin.script.body_bytes == PAGES * PAGE_BYTES)
            assert await read(worker, ino) == rig.data[ino]

    run(script())


def test_a_handle_that_ends_during_its_read_costs_no_cached_page(tmp_path: Path) -> None:
    """The page is read past the tier, so its fill does not keep the entry."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        ino = rig.put(1, PAGES * PAGE_BYTES)
        async with rig.worker() as worker:
            grant = await open_without_its_last_page(rig, worker, ino)
            rig.origin.script.block("read")
            offset = (PAGES - 1) * PAGE_BYTES
            reading = asyncio.create_task(worker.ensure(grant.handle, offset, 1, past_tier=True))
            await asyncio.to_thread(rig.origin.script.wait_blocked, "read")
            worker.release(grant.handle)
            rig.origin.script.unblock()
            _, fd = await reading
            assert fd is not None
            os.close(fd)
            await until(lambda: rig.origin.script.body_bytes == (PAGES + 1) * PAGE_BYTES)
            assert await read(worker, ino) == rig.data[ino]

    run(script())


def test_contents_whose_last_user_leaves_while_they_are_dropped_are_dropped(tmp_path: Path) -> None:
    """The drop of several waits for a thread that makes the file of one."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        for ino in (1, 2):
            rig.put(ino, SMALL)
        async with rig.worker() as worker:
            catalog, ledger = only(worker)._catalog, only(worker).contents.ledger
            for ino in (1, 2):
                await fetch(worker, NAMESPACE, ino)
            await recorded(worker)
            first, second = [
                await catalog.open(rig.space.origins[ino], rig.content(ino).key) for ino in (1, 2)
            ]
            first.creation.acquire()
            freeing = asyncio.create_task(worker.free([rig.content(ino) for ino in (1, 2)]))
            await until(lambda: catalog.is_live(first.key) and first.key in catalog._fences)
            for _ in range(3):
                await asyncio.sleep(0)  # it waits for the first one
            catalog.leave(second)
            first.creation.release()
            assert (await freeing).files == 2
            assert rig.published() == set()
            catalog.leave(first)
            await recorded(worker)
            await until(lambda: not ledger.unlinked_bytes)
            assert ledger.cached_bytes == 0

    run(script())


def test_a_lookup_that_a_lost_tier_prevents_leaves_no_entry(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            one = only(worker)
            await fetch(worker, NAMESPACE, 1)
            await recorded(worker)
            opening = asyncio.create_task(
                one._catalog.open(rig.space.origins[1], rig.content(1).key)
            )
            await asyncio.sleep(0)  # the lookup has not begun
            leave(one)
            one._catalog.leave(await opening)
            assert len(one._catalog) == 0
            come_back(one)
            assert await read(worker, 1) == rig.data[1]
            assert rig.origin.script.body_bytes == SMALL

    run(script())


def test_a_file_that_is_open_since_a_lost_tier_is_read_from_the_tier_that_is_back(
    tmp_path: Path,
) -> None:
    """The handle of that time goes on past the tier: it kept all others from the cache."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, 12 * MIB)
        async with rig.worker() as worker:
            one = only(worker)
            await fetch(worker, NAMESPACE, 1)
            await recorded(worker)
            leave(one)
            first = await open_reader(worker, 1)
            assert await first.at(0, MIB) == rig.data[1][:MIB]
            come_back(one)
            before = rig.origin.script.body_bytes
            assert await read(worker, 1) == rig.data[1]
            assert rig.origin.script.body_bytes == before
            assert await first.at(0, 12 * MIB) == rig.data[1]
            first.close()
            await worker.free([rig.content(1)])
            await until(lambda: not len(one._catalog))
            one.contents.ledger.check_invariants()
            assert one.contents.ledger.cached_bytes == 0

    run(script())
