"""Warm sequential (1 MiB) and random 4 KiB reads of one file: >= 0.8 x a bare pyfuse3 loop-back.

That server is the ceiling of this transport. Native tmpfs and rclone's mount2 stand beside; the
page cache is dropped before each pass.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main, median
from bench.mounts import Mounted
from bench.report import Result


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.big(lab.size(512, 128))
    url = lab.origin.direct_url
    contenders: list[AbstractContextManager[Mounted]] = [
        nullcontext(lab.native(data)),
        lab.rclone(data, url),
        lab.bare(data),
        lab.ours(data.url, url=url),
    ]
    table = result.table(
        f"{data.size_bytes / 1e6:,.0f} MB, one reader, median of {lab.runs}",
        *("who", "sequential GB/s", "CPU s per GB", "random 4 KiB IOPS", "CPU us per read"),
    )
    rates = {}
    for contender in contenders:
        with contender as mount:
            sequential, scattered = both(lab, mount, data)
        rates[mount.name] = (sequential.mb_per_s, scattered.files_per_s)
        figures = (sequential.mb_per_s / 1000, sequential.cpu_s_per_gb)
        table.add(mount.name, *figures, scattered.files_per_s, scattered.cpu_us_per_file)
    for index, what in enumerate(("sequential", "random 4 KiB")):
        ratio = rates["cachefs"][index] / rates["bare pyfuse3"][index]
        result.bar(f"warm {what}, of bare pyfuse3", ratio, 0.8, "x", at_least=True)


def both(lab: Lab, mount: Mounted, data: Dataset) -> tuple[Pass, Pass]:
    """Medians of a sequential pass and of random reads, after a pass that fills the cache."""
    lab.read(mount, data)
    sequential, scattered = [], []
    for number in range(lab.runs):
        lab.drop_caches()
        sequential.append(lab.read(mount, data))
        lab.drop_caches()
        how = {"duration_s": 2.0, "seed": number}
        scattered.append(lab.read(mount, data, what="random", **how))
    by_rate = sorted(scattered, key=lambda one: one.files_per_s)
    return median(sequential), by_rate[len(by_rate) // 2]


if __name__ == "__main__":
    main(run)
