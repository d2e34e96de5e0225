"""Keeps the threads of this process that share the GIL on one CPU, and leaves the others free.

Only one of them runs Python at a time, so a second CPU only adds wake-ups across CPUs each time the
GIL changes hands: a cold small file then costs a third more CPU (`bench/cold_small` shows the CPU
per file). Threads that mostly move bytes, in libcurl or the kernel, may run anywhere. The scheduler
chooses the home CPU: at intervals the loop's thread may run anywhere for a moment, and the others
then follow it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Final

FOLLOW_S: Final = 0.05  # between checks for new threads, which inherit their starter's CPUs
CHOOSE_S: Final = 15.0  # between two choices of a home
FREE_S: Final = 0.05  # for the scheduler to place the loop's thread
_PROCESSOR_FIELD: Final = 36  # of /proc/self/task/TID/stat after the name, see proc(5)


def assign(
    threads: set[int], python: set[int], home: int, allowed: set[int]
) -> dict[int, set[int]]:
    """Returns the CPUs that each thread may use. Pure."""
    return {tid: {home} if tid in python else allowed for tid in threads}


async def keep_together(*apart: str) -> None:
    """Assigns the threads to CPUs until cancelled. Runs in the loop's thread. Leaves threads whose
    names start with one of `apart` free: they move bytes and hold the GIL only briefly."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        return
    loop = asyncio.get_running_loop()
    home, chosen_at_s = -1, float("-inf")
    placed: set[int] = set()
    while True:
        if loop.time() - chosen_at_s >= CHOOSE_S:
            os.sched_setaffinity(0, allowed)
            await asyncio.sleep(FREE_S)
            home, chosen_at_s = _cpu_of(threading.get_native_id()), loop.time()
            placed = set()
        threads = {int(name) for name in os.listdir("/proc/self/task")}
        if threads != placed:
            _apply(threads, home, allowed, apart)
            placed = threads
        await asyncio.sleep(FOLLOW_S)


def _apply(threads: set[int], home: int, allowed: set[int], apart: tuple[str, ...]) -> None:
    python = {
        thread.native_id
        for thread in threading.enumerate()
        if thread.native_id and not thread.name.startswith(apart)
    }
    for tid, cpus in assign(threads, python, home, allowed).items():
        try:
            os.sched_setaffinity(tid, cpus)
        except ProcessLookupError:
            continue  # it has just ended


def _cpu_of(tid: int) -> int:
    """Returns the CPU on which a thread of this process ran last."""
    stat = Path(f"/proc/self/task/{tid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[_PROCESSOR_FIELD])
