"""Threads that a disk holds on to do not keep others from sending."""

from __future__ import annotations

import asyncio
import threading

from tests.unit.worker.rig import run, until
from worker.peers.senders import STUCK_S, Senders


def test_stuck_threads_are_replaced_and_counted_in_again() -> None:
    async def script() -> None:
        now = 0.0
        disk = threading.Event()
        senders = Senders(2, clock=lambda: now)
        try:
            stuck = [senders.threads.run(disk.wait, 20.0) for _ in range(2)]
            waiting = senders.threads.run(lambda: "sent")
            await until(lambda: len(senders.threads.calls()) == 2)
            assert senders.look() == 0
            now = STUCK_S
            assert senders.look() == 2
            assert await asyncio.wait_for(waiting, 10) == "sent"
            disk.set()
            assert all(await asyncio.gather(*stuck))
            await until(lambda: senders.look() == 0)
        finally:
            disk.set()
            await senders.close(5.0)

    run(script())
