"""The end of a worker while something is under way."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.model import Fingerprint
from tests.unit.worker.rig import LIMIT_S, MIB, NAMESPACE, Rig, descriptors, only, read, run
from worker.cache import tier as tier_module
from worker.store.directory import TierDirectory
from worker.store.writer import Writer


class StuckBody:
    """A first chunk, then nothing, whatever is closed."""

    def __init__(self, stuck: threading.Event, go_on: threading.Event) -> None:
        self._stuck = stuck
        self._go_on = go_on

    def __iter__(self) -> Iterator[bytes]:
        yield b"x" * MIB
        self._stuck.set()
        assert self._go_on.wait(LIMIT_S)
        yield b"y" * MIB

    def close(self) -> None:
        pass


def test_a_cache_file_stays_open_while_a_thread_may_write_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its number could come to mean another file, and the write would go there."""
    stuck, go_on = threading.Event(), threading.Event()
    rig = Rig(tmp_path, 64 * MIB)
    rig.put(2, 5 * MIB)

    def read(path: bytes, offset: int, size: int, version: Fingerprint) -> Any:
        return StuckBody(stuck, go_on)

    monkeypatch.setattr(rig.origin, "read", read)
    monkeypatch.setattr(tier_module, "CLOSE_WAIT_S", 0.1)

    async def main() -> set[str]:
        async with rig.worker() as worker:
            opening = asyncio.ensure_future(worker.open(NAMESPACE, 2))
            assert await asyncio.to_thread(stuck.wait, LIMIT_S)
            opening.cancel()
            await asyncio.wait([opening])
        return descriptors()

    left = [name.partition(" ") for name in asyncio.run(main())]
    go_on.set()
    ours = [int(fd) for fd, _, path in left if path.startswith(f"{rig.tier}/files/")]
    for fd in ours:
        os.close(fd)
    assert len(ours) == 1


def test_a_drop_that_is_under_way_ends_before_the_index_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its second commit would be waited for for ever, in a thread that keeps the files open."""
    rig = Rig(tmp_path, 64 * MIB)
    rig.put(2, 5 * MIB)
    monkeypatch.setattr(tier_module, "CLOSE_WAIT_S", 2.0)

    async def main() -> None:
        dropping, go_on = threading.Event(), threading.Event()
        async with rig.worker() as worker:
            await read(worker, 2)
            one = only(worker)
            unpublish, close_writer, close_disk = (
                one.disk.directory.unpublish,
                one.disk.writer.close,
                one.disk.threads.close,
            )

            def unpublish_late(name: str) -> bool:
                dropping.set()
                assert go_on.wait(LIMIT_S)
                return unpublish(name)

            def close_writer_first(wait_s: float | None = None) -> bool:
                closed = close_writer(wait_s)
                go_on.set()
                return closed

            def close_disk_first(wait_s: float) -> bool:
                go_on.set()
                return close_disk(wait_s)

            monkeypatch.setattr(one.disk.directory, "unpublish", unpublish_late)
            monkeypatch.setattr(one.disk.writer, "close", close_writer_first)
            monkeypatch.setattr(one.disk.threads, "close", close_disk_first)
            freeing = asyncio.ensure_future(worker.free([rig.content(2)]))
            assert await asyncio.to_thread(dropping.wait, LIMIT_S)
            freeing.cancel()
            await asyncio.wait([freeing])

    run(main())
    assert "requests in flight" not in caplog.text


def test_who_writes_to_an_index_that_is_closed_does_not_wait(tmp_path: Path) -> None:
    tier = TierDirectory.take(str(tmp_path / "tier"))
    writer = Writer(tier.index)
    assert writer.close()
    writer.submit([], lambda error: None)
    with pytest.raises(OSError, match="closed"):
        writer.write([])
    assert writer.close()
    tier.close()


def test_a_worker_that_is_closed_leaves_no_thread(tmp_path: Path) -> None:
    """A process closes and opens tiers as they are lost and come back."""
    rig = Rig(tmp_path, 64 * MIB)
    rig.put(2, 5000)
    before = set(threading.enumerate())

    async def main() -> None:
        async with rig.worker() as worker:
            await read(worker, 2)

    run(main())
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(LIMIT_S)
    assert not [thread.name for thread in left if thread.is_alive()]
