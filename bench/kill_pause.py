"""The pause that a SIGKILL of the client costs a reader, 50 times: none for an open warm file (no
read slower than the slowest undisturbed one), < 2 s for any other operation. No errno, no wrong
byte.

Kills happen in bursts of 3 to 5 at random moments (the supervisor gives up a client that dies six
times without ten good seconds). Between two bursts the readers are undisturbed, while processes as
big as a client start and end in the same rhythm: both periods have the same load on the CPUs.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.datasets import SMALL_BYTES, Dataset
from bench.harness import Lab, main
from bench.mounts import BenchFailed, Mounted
from bench.report import Result
from bench.steady import steady
from bench.steady_readers import KINDS, Record
from tests.services.processes import is_running, wait_until

SEED = 11
KILLS = 50
UNDISTURBED_S = 10.6  # the supervisor calls a client good after ten seconds
TAKEOVER_LIMIT_S = 15.0
MOST_BETWEEN_S = 0.6
PAUSE_LIMIT_S = 2.0
ROOM_BYTES = 64 << 20  # cache space left for the cold file
AS_BIG_AS_A_CLIENT = "import cachefs.fuse.client, cachefs.fuse.vfs, cachefs.fuse.kernel.session"


@dataclass
class Story:
    """The times of the events, on the readers' clock."""

    killed: list[tuple[float, float]] = field(default_factory=list)  # at, until it answered again
    undisturbed: list[tuple[float, float]] = field(default_factory=list)  # from, to


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.mixed(128, lab.size(4096, 512), 1000, lab.size(3000, 1000))
    kills = lab.size(KILLS, 4)
    cache_size = f"{(128 << 20) + 1000 * SMALL_BYTES + ROOM_BYTES}B"
    flags = ("--transport", "kernel", "--sync-interval", "1h")
    url = lab.origin.direct_url
    with lab.ours(data.url, *flags, url=url, cache_size=cache_size, covers=False) as mount:
        warm_up(mount.path, data)
        kinds = [kind for kind in KINDS if kind != "big file, whole"]
        with steady(mount, data, kinds, lab.root) as readers:
            story = disturb(lab, mount, kills)
        mount.pids += list(lab.cachefs.running())
    show(result, story, readers.records)
    result.notes.append(f"rclone mount2 after one SIGKILL: {peer(lab, data)}.")
    judge(result, story, readers.records)


def warm_up(root: Path, data: Dataset) -> None:
    """Reads the warm files once, then the cold file until the cache is full."""
    names = [name for name in data.names if name.startswith(("big/", "small/"))]
    for name in names:
        (root / name).read_bytes()
    with (root / "cold/data.bin").open("rb") as file:
        for _ in range(3 * ROOM_BYTES >> 20):
            file.read(1 << 20)


def disturb(lab: Lab, mount: Mounted, kills: int) -> Story:
    """Kills the client in bursts, with undisturbed time before each."""
    story, rng, clock = Story(), random.Random(SEED), threading.Event()
    while kills > 0:
        began_s = time.monotonic()
        while (left_s := began_s + UNDISTURBED_S - time.monotonic()) > 0:
            subprocess.run([sys.executable, "-I", "-c", AS_BIG_AS_A_CLIENT], check=True)
            clock.wait(min(rng.uniform(0, MOST_BETWEEN_S), left_s))
        story.undisturbed.append((began_s, time.monotonic()))
        for _ in range(min(kills, rng.randint(3, 5))):
            story.killed.append(kill_client(lab, mount))
            kills -= 1
            clock.wait(rng.uniform(0, MOST_BETWEEN_S))
    return story


def kill_client(lab: Lab, mount: Mounted) -> tuple[float, float]:
    """Kills the client; returns when, and when the next client answered the lookup of a missing
    name, which only a client can answer. Raises BenchFailed."""
    pid = lab.cachefs.client_pid(mount.path)
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    if os.path.lexists(mount.path / f"nowhere-{killed_s}"):
        raise BenchFailed("a missing name exists")
    answered_s = time.monotonic()
    wait_until(
        lambda: lab.cachefs.client_pid(mount.path) not in (0, pid), "a client", TAKEOVER_LIMIT_S
    )
    return killed_s, answered_s


def peer(lab: Lab, data: Dataset) -> str:
    """Returns the error that a user of rclone's mount2 gets after its SIGKILL."""
    with lab.rclone(data, lab.origin.direct_url) as mount:
        os.listdir(mount.path)
        for pid in mount.pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, mount.pids)), "rclone's end", 10.0)
        try:
            os.listdir(mount.path)
        except OSError as err:
            return f"{err.strerror} ({errno.errorcode[err.errno or 0]}) until it is remounted"
    return "it answers"


def longest(record: Record, spans: Iterable[tuple[float, float]]) -> float:
    """Returns the longest operation that overlaps one of the spans; 0 if none was slow."""
    return max(
        (
            took
            for at, took in record.slow
            for start, end in spans
            if at < end and at + took > start
        ),
        default=0.0,
    )


def show(result: Result, story: Story, records: list[Record]) -> None:
    pauses = sorted(end - start for start, end in story.killed)
    table = result.table("Pause after a SIGKILL until a lookup is answered, seconds", "", "s")
    table.add("shortest", pauses[0])
    table.add("median", statistics.median(pauses))
    table.add("90 of 100", pauses[int(0.9 * (len(pauses) - 1))])
    table.add("longest", pauses[-1])
    columns = (
        "reader",
        "operations",
        "longest undisturbed, ms",
        "longest with kills, ms",
        "> 0.1 s",
    )
    table = result.table(f"Readers at work through {len(pauses)} SIGKILLs", *columns)
    for record in records:
        undisturbed = longest(record, story.undisturbed) * 1e3
        killed = longest(record, story.killed) * 1e3
        long = sum(took > 0.1 for _, took in record.slow)
        table.add(record.kind, record.operations, undisturbed, killed, long)
    result.notes.append(f"Seed {SEED}; operations under 1 ms are not listed one by one (0).")


def judge(result: Result, story: Story, records: list[Record]) -> None:
    warm = [record for record in records if record.kind.startswith("open warm")]
    others = [record for record in records if record not in warm]
    for record in warm:
        undisturbed = longest(record, story.undisturbed) * 1e3
        claim = f"{record.kind}: the longest during takeovers"
        result.bar(claim, longest(record, story.killed) * 1e3, undisturbed, "ms")
    worst = max(record.worst_s for record in others)
    result.bar("anything else: the longest of all", worst, PAUSE_LIMIT_S, "s")
    wrong = [text for record in records for text in record.wrong]
    result.bar("errors and wrong bytes", len(wrong), 0)
    result.notes += wrong[:5]


if __name__ == "__main__":
    main(run)
