"""A load job of a million files: < 60 us of the master's CPU per file, listing and checking
included. Its memory stays flat. After a SIGKILL the job continues, and repeats < 1 % of the work.

The origin is computed, the store durable. The worker is a real loader over the wire with a cache
that already has every file, so that only the master is measured.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from bench import machine
from bench.harness import Lab, main
from bench.master_process import PATH, MasterProcess, master_over
from bench.mounts import BenchFailed
from bench.report import Result
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.jobs import JobSpec, JobState, JobStatus, Room, TaskFile
from cachefs.core.model import Origin
from worker.cache.load_requests import Load, Loaded, PrefetchResult
from worker.cache.loading import CacheLoading
from worker.loads.loader import Loader
from worker.membership.master_client import MasterClient
from worker.membership.member import Membership

FILES = 1000  # of one directory
MIB = 1 << 20
WORKER = "ab" * 16
LIMIT_S = 280.0
KILLED_AT = 0.5  # of the files
CAPACITY_BYTES = 1 << 50


class Instant:
    """A cache that already has every file."""

    def __init__(self) -> None:
        self.loads = 0
        self.checks = 0

    def load(self, load: Load) -> None:
        self.loads += 1
        load.ended(Loaded(load.origin.size, None))

    def bring_ahead(self, origin: Origin, ended: Callable[[bool], None]) -> PrefetchResult:
        return PrefetchResult.HERE

    async def check(self, files: Sequence[TaskFile]) -> list[int]:
        self.checks += len(files)
        return []

    async def verify(self, files: Sequence[TaskFile]) -> list[int]:
        return await self.check(files)

    async def room(self) -> Room:
        return Room(CAPACITY_BYTES, 0, 0, 0)

    def capacity(self) -> int:
        return CAPACITY_BYTES

    def places_ahead(self) -> int:
        return 0


@dataclass
class Seen:
    """The figures of one master, until it ended."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    rss_bytes: list[int] = field(default_factory=list)
    shown: JobStatus | None = None


def run(lab: Lab, result: Result) -> None:
    count = lab.size(1000, 50) * FILES
    cache = Instant()
    with tempfile.TemporaryDirectory(prefix="cachefs-bench-") as store:
        with master_over(store, count // FILES, FILES, "unlisted") as master:
            first = asyncio.run(watch(master, cache, count, kill=True))
        with master_over(store, count // FILES, FILES, "unlisted") as master:
            second = asyncio.run(watch(master, cache, count, kill=False))
    shown = second.shown
    if shown is None or shown.state is not JobState.SUCCEEDED or shown.files_done != count:
        raise BenchFailed(f"the job did not succeed: {shown}")
    again = cache.loads - count
    table = result.table(f"a load of {count:,} files", "master", "s", "CPU s", "RssAnon MiB, most")
    for name, seen in (("until it was killed", first), ("to the end", second)):
        table.add(name, seen.wall_s, seen.cpu_s, max(seen.rss_bytes) / MIB)
    cpu_us = (first.cpu_s + second.cpu_s) / count * 1e6
    result.bar("master's CPU per file", cpu_us, 60.0, "us")
    result.bar("RssAnon grows", growth(first.rss_bytes) / MIB, 16.0, "MiB")
    result.bar("files handed out again after SIGKILL", again, 10_000)
    if again < 0:
        raise BenchFailed(f"{-again} files were never handed out")
    result.notes.append(f"{cache.checks:,} files were checked at the end.")


def growth(rss_bytes: list[int]) -> int:
    """Returns the growth from the second quarter on: before that, caches fill."""
    later = rss_bytes[len(rss_bytes) // 4 :] or [0]
    return max(later) - later[0]


async def watch(master: MasterProcess, cache: Instant, count: int, *, kill: bool) -> Seen:
    """Runs a worker of this master and measures the master. With `kill` it submits the job, and
    kills the master at `KILLED_AT`."""
    seen = Seen()
    client = MasterClient(f"http://127.0.0.1:{master.port}")
    members = Membership(client, c.Register(WORKER, "http://127.0.0.1:1", 1.0))

    async def work(call: c.Work) -> c.Worked:
        return await client.ask(call, c.Worked, answer_s=call.wait_s + 10, reach_s=0)

    try:
        namespace = (await client.ask(c.Greeting(), c.Greeted)).namespace
        await members.start()
        loader = Loader(cast(CacheLoading, cache), work, WORKER)
        started, before_s = time.monotonic(), machine.cpu_s([master.pid])
        spec = JobSpec((b"/" + PATH.strip(b"/"),))
        if kill:
            await client.ask(m.SubmitJob(namespace, spec), m.JobSubmitted)
        loader.start()
        while time.monotonic() - started < LIMIT_S:
            await asyncio.sleep(0.25)
            seen.cpu_s = machine.cpu_s([master.pid]) - before_s
            seen.wall_s = time.monotonic() - started
            seen.rss_bytes.append(machine.rss_anon_bytes(master.pid))
            if kill and cache.loads >= KILLED_AT * count:
                os.kill(master.pid, signal.SIGKILL)
                break
            seen.shown = (await client.ask(m.GetJob(namespace, 1), m.JobReply)).job
            if seen.shown.state.has_ended:
                break
        await loader.close()
        await members.stop(leave=False)
    finally:
        await client.close()
    return seen


if __name__ == "__main__":
    main(run)
