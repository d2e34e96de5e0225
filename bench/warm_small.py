"""Warm files of 110 KiB, 4 readers, open + read + close: >= rclone's mount2, with the kernel's
names dropped before the pass and with names kept.

Native tmpfs and a bare pyfuse3 loop-back server stand beside; the page cache is dropped before
every pass.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main, median
from bench.mounts import Mounted
from bench.report import Result

READERS = 4


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(4000, 500))
    url = lab.origin.direct_url
    contenders: list[AbstractContextManager[Mounted]] = [
        nullcontext(lab.native(data)),
        lab.bare(data),
        lab.rclone(data, url),
        lab.ours(data.url, url=url),
    ]
    table = result.table(
        f"{len(data.names):,} files of 110 KiB, {READERS} readers, median of {lab.runs}",
        *("who", "names dropped: files/s", "CPU us per file", "names kept: files/s", "CPU us"),
    )
    rates = {}
    for contender in contenders:
        with contender as mount:
            dropped, kept = both(lab, mount, data)
        rates[mount.name] = (dropped.files_per_s, kept.files_per_s)
        figures = [(one.files_per_s, one.cpu_us_per_file) for one in (dropped, kept)]
        table.add(mount.name, *figures[0], *figures[1])
    for index, what in enumerate(("names dropped", "names kept")):
        ratio = rates["cachefs"][index] / rates["rclone mount2"][index]
        claim = f"warm small files, {what}, of rclone mount2"
        result.bar(claim, ratio, 1.0, "x", at_least=True)


def both(lab: Lab, mount: Mounted, data: Dataset) -> tuple[Pass, Pass]:
    """Medians with names dropped and kept, after a pass that fills the cache."""
    lab.read(mount, data, readers=16)
    dropped, kept = [], []
    for _ in range(lab.runs):
        lab.drop_caches(dentries=True)
        dropped.append(lab.read(mount, data, readers=READERS))
        lab.drop_caches(dentries=False)
        kept.append(lab.read(mount, data, readers=READERS))
    return median(dropped), median(kept)


if __name__ == "__main__":
    main(run)
