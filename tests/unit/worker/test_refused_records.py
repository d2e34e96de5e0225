"""An index that refuses records for a while: what it has stays, what it lacks is recorded later,
and what is cached is read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.model import PAGE_BYTES
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, open_reader, run, until
from worker.cache.cache import Cache
from worker.store.index import Index

PAGES = 16  # a smaller file is brought whole by its open


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def bring(worker: Cache, first: int, end: int) -> None:
    found = await worker.serving.bring(NAMESPACE, 1, first, end, peers_only=False)
    assert found == end - first


def test_cached_pages_are_read_while_the_index_takes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a file that takes more room than its record says, as after a kill in a fill."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, PAGES * PAGE_BYTES)
        async with rig.worker() as worker:
            catalog, ledger = only(worker)._catalog, only(worker).contents.ledger
            await bring(worker, 0, 1)
            await until(lambda: not len(catalog))
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
