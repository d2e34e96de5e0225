"""A directory of 1,000,000 names, listed and merged by the master: an unordered store takes
<= 1.5 x the time of an ordered one, with RssAnon < 150 MiB.

The store computes its names and costs the same in both orders. Each pass is a sync of the directory
in a process of its own, over a durable LMDB. RssAnon is that of the whole process.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import machine
from bench.datasets import MIB
from bench.harness import Lab, main, middle
from bench.mounts import BenchFailed
from bench.origin import REPOSITORY
from bench.report import Result
from cachefs.core.model import UfsSpec
from cachefs.launcher import gc_tuning
from connectors.base import Entry, Page
from connectors.capabilities import Capabilities, Identity
from master.namespace import Master
from tests.services.memory import SyntheticConnector

NAMES = 1_000_000
TIMES = 1.5
MEMORY_MIB = 150.0
SAMPLE_S = 0.05
LOOK_S = 0.05
PASS_LIMIT_S = 600.0


class Passed(NamedTuple):
    """One listing of the directory."""

    wall_s: float
    cpu_s: float
    rss_mib: float


class Shuffled(SyntheticConnector):
    """Lists each directory in an order that has nothing to do with names."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            ordered_listings=False,
            directories=False,
            posix_attributes=False,
            symlinks=False,
            identity=Identity.FIXED,
            refuses_other_versions=True,
            mtime_precision_ns=10**9,
        )

    def list_dir(self, path: bytes) -> Iterator[Page]:
        if not path:
            yield from super().list_dir(path)
            return
        count = self.files_per_directory
        step = 387_420_489  # a power of 3, prime to every count that is not a multiple of 3
        assert math.gcd(step, count) == 1
        files = (Entry(b"f%06d" % (n * step % count), self._file) for n in range(count))
        yield from self._pages(files)


def run(lab: Lab, result: Result) -> None:
    count = lab.size(NAMES, 100_000)
    passes: dict[str, list[Passed]] = {"ordered": [], "unordered": []}
    for number in range(lab.runs):
        for order, found in passes.items():
            found.append(listed(lab.root / f"{order}-{number}", order, count))
    table = result.table(f"{count:,} names", "store", "s", "names/s", "CPU us per name", "RssAnon")
    wall_s = {}
    for order, found in passes.items():
        wall_s[order], cpu_s, rss_mib = (middle(column) for column in zip(*found, strict=True))
        table.add(
            order, wall_s[order], count / wall_s[order], cpu_s / count * 1e6, f"{rss_mib:.0f} MiB"
        )
    result.bar(
        "unordered, of an ordered store", wall_s["unordered"] / wall_s["ordered"], TIMES, "x"
    )
    most_mib = max(one.rss_mib for one in passes["unordered"])
    result.bar("RssAnon of the master", most_mib, MEMORY_MIB, "MiB")


def listed(store: Path, order: str, count: int) -> Passed:
    command = [sys.executable, "-m", "bench.unordered_listing", "child", str(store), order]
    done = subprocess.run(
        [*command, str(count)],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        timeout=PASS_LIMIT_S,
    )
    return Passed(*json.loads(done.stdout))


async def child(store: Path, order: str, count: int) -> Passed:
    gc_tuning.settle()
    make = SyntheticConnector if order == "ordered" else Shuffled
    origin = make(directories=1, files_per_directory=count)
    master = Master.open(store, UfsSpec("s3://made-up"), origin, 3600.0)
    try:
        with Sampler() as sampler:
            cpu_s, began_s = time.process_time(), time.monotonic()
            sync = (await master.start_sync(b"", recursive=True, dry_run=False)).sync
            while sync.state == "running":
                await asyncio.sleep(LOOK_S)
                sync = (await master.sync(sync.sync, 0, stop=False)).sync
            took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        if sync.state != "done" or sync.names != count + 1:
            raise BenchFailed(f"the sync ended as {sync.state} with {sync.names} names")
        return Passed(took_s, cpu_s, sampler.most / MIB)
    finally:
        await master.close()


class Sampler:
    """The greatest RssAnon of this process while the block runs, in bytes."""

    def __init__(self) -> None:
        self.most = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self.most = max(self.most, machine.rss_anon_bytes(os.getpid()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        _, _, where, which, names = sys.argv
        print(json.dumps(asyncio.run(child(Path(where), which, int(names)))))
    else:
        main(run)
