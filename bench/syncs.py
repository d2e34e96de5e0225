"""`sync -R` of 100,000 names in 1,000 and in 10,000 directories at the master, dry and real, of an
origin that costs nothing: no other call waits longer than 50 ms for the event loop.

CPU per name is that of the whole process, which includes the synthetic origin. The store is LMDB,
durable. The garbage collector is tuned as in a server (`cachefs.launcher.gc_tuning`).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.harness import Lab, main
from bench.mounts import BenchFailed
from bench.report import Result, Table
from cachefs.core.model import Fingerprint, Kind, UfsSpec
from cachefs.launcher import gc_tuning
from master.namespace import Master
from tests.services.memory import SyntheticConnector

NAMES = 100_000
STALL_MS = 50.0
LOOK_S = 0.05
TICK_S = 0.002


def run(lab: Lab, result: Result) -> None:
    gc_tuning.settle()
    count = lab.size(NAMES, 10_000)
    table = result.table(
        f"{count:,} files", "what", "directories", "s", "names/s", "CPU us per name", "stall ms"
    )
    stalls = [
        asyncio.run(measure(lab.root / f"syncs-{each}", table, count // each, each))
        for each in (100, 10)
    ]
    result.bar("longest stall of the event loop", max(stalls), STALL_MS, "ms")


async def measure(directory: Path, table: Table, directories: int, each: int) -> float:
    """Returns the longest stall, ms, of syncs: first, unchanged, all files replaced, all gone."""
    origin = Changing(directories=directories, files_per_directory=each)
    master = Master.open(directory, UfsSpec("s3://made-up"), origin, 3600.0)
    try:
        longest = 0.0
        for what in ("first", "unchanged", "replaced", "gone"):
            if what == "replaced":
                origin.change()
            if what == "gone":
                origin.directories = 1
            for dry_run in (True, False):
                title = f"{what}, dry run" if dry_run else what
                stall_ms = await one(master, table, title, directories, dry_run=dry_run)
                longest = max(longest, stall_ms)
        return longest
    finally:
        await master.close()


async def one(master: Master, table: Table, what: str, directories: int, *, dry_run: bool) -> float:
    gaps = [0.0]
    watching = asyncio.create_task(watch(gaps))
    cpu_s, began_s = time.process_time(), time.monotonic()
    sync = (await master.start_sync(b"", recursive=True, dry_run=dry_run)).sync
    while sync.state == "running":
        await asyncio.sleep(LOOK_S)
        sync = (await master.sync(sync.sync, 0, stop=False)).sync
    cpu_s, took_s = time.process_time() - cpu_s, time.monotonic() - began_s
    watching.cancel()
    if sync.state != "done":
        raise BenchFailed(f"the sync ended as {sync.state}: {sync.message}")
    per_name_us = cpu_s / sync.names * 1e6
    table.add(what, directories, took_s, sync.names / took_s, per_name_us, max(gaps) * 1e3)
    return max(gaps) * 1e3


async def watch(gaps: list[float]) -> None:
    """Records how much later than requested the loop wakes this task, s."""
    while True:
        asked_s = time.monotonic()
        await asyncio.sleep(TICK_S)
        gaps.append(time.monotonic() - asked_s - TICK_S)


class Changing(SyntheticConnector):
    """An origin that can replace all of its files at once."""

    def change(self) -> None:
        self._file = Fingerprint(Kind.FILE, self.file_bytes + 1, self.MTIME_NS, "changed")


if __name__ == "__main__":
    main(run)
