"""The kernel alone reads a warm file: sequential 1 MiB, random 4 KiB, random 128 KiB and a scan of
a map >= 0.95 x the same cache file read natively, with no READ upcall.

The native side reads the cache file that the mount hands to the kernel; rclone's mount2 is measured
beside. One process reads all three in turns of 60 ms; the ratio is the median of the turns'. Every
byte was compared with its checksum before.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import msgspec

from bench import machine
from bench.datasets import MIB, Dataset
from bench.harness import READ_LIMIT_S, Lab, main, middle
from bench.mounts import BenchFailed, Mounted
from bench.origin import REPOSITORY
from bench.plain_reads import Spec, Turn
from bench.report import Result, Table

BAR = 0.95
TURNS = 40
WORK = {
    "sequential 1 MiB": ("sequential", MIB),
    "random 4 KiB": ("scattered", 4 << 10),
    "random 128 KiB": ("scattered", 128 << 10),
    "mmap scan": ("mapped", MIB),
}


def run(lab: Lab, result: Result) -> None:
    data, url = lab.datasets.big(lab.size(512, 128)), lab.origin.direct_url
    columns = ("work", "who", "GB/s", "reads/s", "of native", "reader's CPU s per GB", "server's")
    title = f"{data.size_bytes / 1e6:,.0f} MB, one reader, medians of {lab.size(TURNS, 8)} turns"
    table = result.table(title, *columns)
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(lab.rclone(data, url))
        ours = stack.enter_context(lab.ours(data.url, "--transport", "kernel", url=url))
        lab.read(peer, data)
        lab.read(ours, data)
        mounts = [beside(lab, ours, data), ours, peer]
        for mount in mounts[:2]:
            lab.read(mount, data)
        before = lab.cachefs.counters(ours.path)
        for work in WORK:
            lab.drop_caches()
            compare(lab, result, table, work, mounts, data)
        after = lab.cachefs.counters(ours.path)
    result.bar("READ upcalls of all warm passes", after["reads"] - before["reads"], 0)
    opened = after["passthrough_opens"] - before["passthrough_opens"]
    result.bar("opens that went to the cache file", opened, len(WORK), at_least=True)


def beside(lab: Lab, ours: Mounted, data: Dataset) -> Mounted:
    """Returns a native mount of our cache file, under the file's name."""
    folder = lab.root / "native"
    folder.mkdir()
    (folder / data.names[0]).symlink_to(ours.published(data.size_bytes))
    return Mounted("native, the cache file", folder, [])


def compare(
    lab: Lab, result: Result, table: Table, work: str, mounts: list[Mounted], data: Dataset
) -> None:
    """Runs one work on all mounts; the first is the native one."""
    before = [machine.cpu_s(mount.pids) for mount in mounts]
    turns = in_turns(lab, work, [mount.path / data.names[0] for mount in mounts], data)
    for mount, mine, before_s in zip(mounts, turns, before, strict=True):
        rate = middle(turn.bytes / turn.wall_s for turn in mine)
        ratio = middle(
            (one.bytes / one.wall_s) / (other.bytes / other.wall_s)
            for one, other in zip(mine, turns[0], strict=True)
        )
        total = sum(turn.bytes for turn in mine)
        cpu_s = (machine.cpu_s(mount.pids) - before_s) / (total / 1e9)
        readers_s = middle(turn.cpu_s / (turn.bytes / 1e9) for turn in mine)
        reads = middle(turn.operations / turn.wall_s for turn in mine)
        table.add(work, mount.name, rate / 1e9, reads, ratio, readers_s, cpu_s)
        if mount.name == "cachefs":
            result.bar(f"warm {work}, of native", ratio, BAR, "x", at_least=True)


def in_turns(lab: Lab, work: str, paths: list[Path], data: Dataset) -> list[list[Turn]]:
    """Runs `bench/plain_reads.py` as a process. Raises BenchFailed."""
    kind, read_bytes = WORK[work]
    digest = json.loads(data.checksums.read_text())[data.names[0]]
    spec = Spec(kind, [str(path) for path in paths], digest, read_bytes)
    spec.turns = lab.size(TURNS, 8)
    path = lab.root / "turns.json"
    path.write_bytes(msgspec.json.encode(spec))
    command = [sys.executable, "-m", "bench.plain_reads", str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=READ_LIMIT_S)
    if done.returncode:
        raise BenchFailed(f"{work}: {done.stderr.decode().strip()[-800:]}")
    return msgspec.json.decode(done.stdout, type=list[list[Turn]])


if __name__ == "__main__":
    main(run)
