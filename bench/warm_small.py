"""Transport pyfuse3: warm files of 110 KiB, 4 readers, open + read + close >= rclone's mount2, with
the kernel's names dropped before the pass and with names kept.

Native tmpfs and a bare pyfuse3 loop-back server are measured beside; the page cache is dropped
before every pass.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product

from bench.harness import Lab, Pass, main, median
from bench.report import Result

READERS = 4


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(4000, 500))
    table = result.table(
        f"{len(data.names):,} files of 110 KiB, {READERS} readers, median of {lab.runs}",
        *("who", "names dropped: files/s", "CPU us per file", "names kept: files/s", "CPU us"),
    )
    passes: dict[tuple[str, bool], list[Pass]] = defaultdict(list)
    with lab.side_by_side(data, readers=16) as contenders:
        for _, contender, dropped in product(range(lab.runs), contenders, (True, False)):
            lab.drop_caches(dentries=dropped)
            done = lab.read(contender, data, readers=READERS)
            passes[contender.name, dropped].append(done)
    for contender in contenders:
        figures = [median(passes[contender.name, dropped]) for dropped in (True, False)]
        cells = [(one.files_per_s, one.cpu_us_per_file) for one in figures]
        table.add(contender.name, *cells[0], *cells[1])
    for dropped, what in ((True, "names dropped"), (False, "names kept")):
        rates = [median(passes[n, dropped]).files_per_s for n in ("cachefs", "rclone mount2")]
        claim = f"warm small files, {what}, of rclone mount2"
        result.bar(claim, rates[0] / rates[1], 1.0, "x", at_least=True)


if __name__ == "__main__":
    main(run)
