"""An index that refuses records for a while: what it has stays, what it lacks is recorded later,
and what is cached is read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.jobs import TaskFile
from cachefs.core.model import PAGE_BYTES
from tests.services.loading import load_into
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
from worker.cache.cache import Cache
from worker.store.index import Index

PAGES = 16  # a smaller file is brought whole by its open


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def bring(worker: Cache, first: int, end: int) -> None:
    found = await worker.serving.bring(NAMESPACE, 1, first, end, peers_only=False)
    assert found == end - first


def bits(rig: Rig, worker: Cache) -> int:
    """Returns the pages of the file that the index has."""
    index = only(worker).disk.directory.index
    return index.bits(rig.content(1).key, PAGES * PAGE_BYTES)


def test_a_refused_record_costs_no_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, PAGES * PAGE_BYTES)
        async with rig.worker() as worker:
            await bring(worker, 0, 2)
            await recorded(worker)
            with monkeypatch.context() as patch:
                patch.setattr(Index, "write", no_room)
                await bring(worker, 2, 3)
                await recorded(worker)
            assert bits(rig, worker) == 0b11
            assert await read(worker, 1) == rig.data[1]
            ranges = [(offset, size) for _, offset, size in rig.origin.script.ranges]
            assert min(offset for offset, _ in ranges[2:]) >= 2 * PAGE_BYTES

    run(script())


def test_a_load_is_over_once_the_index_has_all_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refused some while a reader had the file open."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, PAGES * PAGE_BYTES)
        async with rig.worker() as worker:
            await bring(worker, 0, 1)
            await until(lambda: bits(rig, worker) == 1)
            reader = await open_reader(worker, 1)
            with monkeypatch.context() as patch:
                patch.setattr(Index, "write", no_room)
                await bring(worker, 1, PAGES)
                entry = only(worker)._catalog.live(rig.content(1).key)
                assert entry is not None
                await until(lambda: not entry.uncommitted)
            only(worker).disk.health.returned()
            origin, loading = rig.space.origins[1], only(worker).loading
            assert await loading.checks.missing([TaskFile(origin)]) == [0]
            await load_into(loading, origin)
            assert bits(rig, worker) == (1 << PAGES) - 1
            assert rig.published() == {rig.name(1)}
            reader.close()
        assert rig.origin.script.body_bytes == PAGES * PAGE_BYTES

    run(script())


def test_cached_pages_are_read_while_the_index_takes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a file that takes more room than its record says, as after a kill in a fill."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, PAGES * PAGE_BYTES)
        async with rig.worker() as worker:
            ledger = only(worker).contents.ledger
            await bring(worker, 0, 1)
            await recorded(worker)
            name, cached_bytes = rig.name(1), ledger.cached_bytes
            fd = os.open(rig.tier / "files" / name[-2:] / name, os.O_RDWR)
            os.posix_fallocate(fd, 2 * PAGE_BYTES, PAGE_BYTES)
            os.close(fd)
            with monkeypatch.context() as patch:
                patch.setattr(Index, "write", no_room)
                reader = await open_reader(worker, 1)
                assert await reader.at(0, PAGE_BYTES) == rig.data[1][:PAGE_BYTES]
                reader.close()
            assert rig.origin.script.body_bytes == PAGE_BYTES
            assert ledger.cached_bytes == cached_bytes

    run(script())
