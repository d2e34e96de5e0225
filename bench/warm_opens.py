"""Warm files of 110 KiB, open + read + close by 4 processes: >= 0.35 x native after the kernel's
names were dropped, >= 0.5 x with names kept; <= 35 us of the client's CPU per open and release; 16
processes are not slower than 4.

Native tmpfs, rclone's mount2 and two bare servers are measured beside. The bare servers answer such
reads on /dev/fuse, check nothing and keep every file registered. The one in Python
(`bench/bare_kernel.py`) is about the limit of one thread of Python, the one in C
(`bench/bare_kernel.c`) about the limit of any server. Passes of all take turns, ratios are taken
within a turn. Every byte was compared with its checksum before the clock started.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from itertools import product

from bench.datasets import SMALL_BYTES
from bench.harness import Lab, Pass, main, median, median_rate, middle
from bench.mounts import BARE_C, BARE_KERNEL, Mounted, bare_c, bare_kernel
from bench.report import Result

READERS, MANY = 4, 16
DURATION_S = 0.7
CPU_LIMIT_US = 35.0
NOISE = 0.05  # between two medians of equal work on such a machine
NATIVE = "native tmpfs"
Passes = dict[tuple[str, str], list[Pass]]


def run(lab: Lab, result: Result) -> None:
    data, url = lab.datasets.small(lab.size(8000, 500)), lab.origin.direct_url
    turns = 1 if lab.quick else 5
    passes: Passes = defaultdict(list)
    with contextlib.ExitStack() as stack:
        mounts = [
            Mounted(NATIVE, data.folder, []),
            stack.enter_context(
                lab.ours(data.url, "--transport", "kernel", url=url, covers=False)
            ).only("client"),
            stack.enter_context(bare_kernel(lab.root, data.folder)),
            stack.enter_context(bare_c(lab.root, data.folder)),
            stack.enter_context(lab.rclone(data, url)),
        ]
        for mount in mounts:
            lab.read(mount, data, readers=16)
            lab.read(mount, data, readers=16)
        for _, mount in product(range(turns), mounts):
            how = {"what": "opens", "chunk_bytes": SMALL_BYTES, "duration_s": DURATION_S}
            lab.drop_caches()
            passes["dropped", mount.name].append(
                lab.read(mount, data, readers=READERS, once=True, **how)
            )
            for readers in (READERS, MANY):
                done = lab.read(mount, data, readers=readers, **how)
                passes[f"kept, {readers}", mount.name].append(done)
    show(result, passes, len(data.names), turns)
    compare(result, passes)
    judge(result, passes)


def show(result: Result, passes: Passes, count: int, turns: int) -> None:
    columns = ["who", "names dropped: files/s", "CPU us", "kept: files/s", "CPU us"]
    columns += [f"kept, {MANY} processes: files/s", "CPU us"]
    title = f"{count:,} files of 110 KiB, {READERS} processes, medians of {turns}; client's CPU"
    table = result.table(title, *columns)
    for who in dict.fromkeys(name for _, name in passes):
        dropped = median(passes["dropped", who])
        kept = [median_rate(passes[f"kept, {readers}", who]) for readers in (READERS, MANY)]
        cells = [(one.files_per_s, one.cpu_us_per_file) for one in (dropped, *kept)]
        table.add(who, *(cell for pair in cells for cell in pair))


def compare(result: Result, passes: Passes) -> None:
    """Compares CacheFS and the bare servers with native, and CacheFS with the bare servers."""
    columns = ("who", "names dropped", "kept", f"kept, {MANY} processes")
    table = result.table("Files/s in the same turn, medians of the ratios", *columns)
    pairs = [(who, NATIVE) for who in ("cachefs", BARE_KERNEL, BARE_C)]
    for who, base in [*pairs, ("cachefs", BARE_KERNEL), ("cachefs", BARE_C)]:
        ratios = [
            middle(
                one.files_per_s / other.files_per_s
                for one, other in zip(passes[what, who], passes[what, base], strict=True)
            )
            for what in ("dropped", f"kept, {READERS}", f"kept, {MANY}")
        ]
        table.add(f"{who}, of {base}", *ratios)


def judge(result: Result, passes: Passes) -> None:
    for what, limit in (("dropped", 0.35), (f"kept, {READERS}", 0.5)):
        turns = zip(passes[what, "cachefs"], passes[what, NATIVE], strict=True)
        ratio = middle(ours.files_per_s / native.files_per_s for ours, native in turns)
        name = what.partition(",")[0]
        result.bar(f"warm opens, names {name}, of native", ratio, limit, "x", at_least=True)
    few, many = (passes[f"kept, {readers}", "cachefs"] for readers in (READERS, MANY))
    cpu = middle(one.cpu_us_per_file for one in few)
    result.bar("client's CPU per open + release", cpu, CPU_LIMIT_US, "us")
    ratio = middle(one.files_per_s for one in many) / middle(one.files_per_s for one in few)
    claim = f"warm opens by {MANY} processes, of those by {READERS}"
    result.bar(claim, ratio, 1 - NOISE, "x", at_least=True)


if __name__ == "__main__":
    main(run)
