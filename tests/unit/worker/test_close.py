"""The end of a worker while a request to the origin does not end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.model import Fingerprint
from tests.unit.worker.rig import LIMIT_S, MIB, NAMESPACE, Rig, descriptors
from worker import worker as worker_module


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
    monkeypatch.setattr(worker_module, "CLOSE_WAIT_S", 0.1)

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
