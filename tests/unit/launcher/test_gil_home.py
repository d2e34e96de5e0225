"""The threads that share the GIL stay on one CPU; other threads may run anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

from cachefs.launcher import gil_affinity


def test_python_threads_go_home_and_others_are_free() -> None:
    assert gil_affinity.assign({1, 2, 3}, {1, 3}, 5, {4, 5}) == {1: {5}, 2: {4, 5}, 3: {5}}


def test_threads_of_this_process_follow() -> None:
    async def run() -> tuple[set[int], set[int]]:
        allowed = os.sched_getaffinity(0)
        done = threading.Event()
        other = threading.Thread(target=done.wait)
        other.start()
        together = asyncio.ensure_future(gil_affinity.keep_together())
        try:
            async with asyncio.timeout(10):
                while len(os.sched_getaffinity(other.native_id or 0)) > 1 and len(allowed) > 1:
                    await asyncio.sleep(0.01)
            return os.sched_getaffinity(other.native_id or 0), os.sched_getaffinity(0)
        finally:
            together.cancel()
            done.set()
            other.join()
            for tid in map(int, os.listdir("/proc/self/task")):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.sched_setaffinity(tid, allowed)

    other, loop = asyncio.run(run())
    assert len(other) == 1
    assert other == loop
