"""A warm file is read by the kernel alone: sequential 1 MiB, random 4 KiB, random 128 KiB and a
scan of a map >= 0.95 x the same cache file read natively, with no READ upcall.

The native side reads the very cache file that the mount hands to the kernel; rclone's mount2 stands
beside. Passes of all take turns and end by the clock; ratios are taken within a turn. Every byte
was compared with its checksum before the clock started.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from itertools import product
from typing import Any

from bench.datasets import MIB, Dataset
from bench.harness import Lab, Pass, main, median_rate, middle
from bench.mounts import Mounted
from bench.report import Result

DURATION_S = 0.7
BAR = 0.95
WORK: dict[str, dict[str, Any]] = {
    "sequential 1 MiB": {"what": "plain_sequential", "chunk_bytes": MIB},
    "random 4 KiB": {"what": "plain_random", "read_bytes": 4 << 10},
    "random 128 KiB": {"what": "plain_random", "read_bytes": 128 << 10},
    "mmap scan": {"what": "plain_mapped"},
}


def run(lab: Lab, result: Result) -> None:
    data, url = lab.datasets.big(lab.size(512, 128)), lab.origin.direct_url
    turns = 1 if lab.quick else 5
    passes: dict[tuple[str, str], list[Pass]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(lab.rclone(data, url))
        ours = stack.enter_context(lab.ours(data.url, "--transport", "kernel", url=url))
        lab.read(peer, data)
        lab.read(ours, data)
        native = beside(lab, ours, data)
        for mount in (native, ours):
            lab.read(mount, data)
        before = lab.cachefs.counters(ours.path)
        for turn, (work, how), mount in product(range(turns), WORK.items(), (native, ours, peer)):
            lab.drop_caches()
            done = lab.read(mount, data, duration_s=DURATION_S, seed=turn, **how)
            passes[work, mount.name].append(done)
        after = lab.cachefs.counters(ours.path)
    show(result, passes, data)
    result.bar("READ upcalls of all warm passes", after["reads"] - before["reads"], 0)
    opened = after["passthrough_opens"] - before["passthrough_opens"]
    result.bar("opens that went to the cache file", opened, turns * len(WORK), at_least=True)


def beside(lab: Lab, ours: Mounted, data: Dataset) -> Mounted:
    """The cache file of ours, under the file's name."""
    folder = lab.root / "native"
    folder.mkdir()
    (folder / data.names[0]).symlink_to(ours.published(data.size_bytes))
    return Mounted("native, the cache file", folder, [])


def show(result: Result, passes: dict[tuple[str, str], list[Pass]], data: Dataset) -> None:
    title = f"{data.size_bytes / 1e6:,.0f} MB, one reader, medians"
    table = result.table(title, "work", "who", "GB/s", "reads/s", "of native", "CPU s per GB")
    for (work, who), runs in passes.items():
        native = passes[work, "native, the cache file"]
        ratio = middle(
            one.mb_per_s / other.mb_per_s for one, other in zip(runs, native, strict=True)
        )
        one = median_rate(runs)
        table.add(work, who, one.mb_per_s / 1e3, one.files_per_s, ratio, one.cpu_s_per_gb)
        if who == "cachefs":
            result.bar(f"warm {work}, of native", ratio, BAR, "x", at_least=True)


if __name__ == "__main__":
    main(run)
