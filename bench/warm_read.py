"""Transport pyfuse3: warm sequential (1 MiB) and random 4 KiB reads of one file >= 0.8 x a bare
pyfuse3 loop-back server.

That server is the upper bound of this transport; `warm_passthrough` measures the other one. Native
tmpfs and rclone's mount2 are measured beside; the page cache is dropped before each pass.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product

from bench.harness import Lab, Pass, main, median, median_rate
from bench.report import Result

DURATION_S = 2.0


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.big(lab.size(512, 128))
    table = result.table(
        f"{data.size_bytes / 1e6:,.0f} MB, one reader, median of {lab.runs}",
        *("who", "sequential GB/s", "CPU s per GB", "random 4 KiB IOPS", "CPU us per read"),
    )
    sequential: dict[str, list[Pass]] = defaultdict(list)
    scattered: dict[str, list[Pass]] = defaultdict(list)
    with lab.side_by_side(data, readers=1) as contenders:
        for number, contender in product(range(lab.runs), contenders):
            lab.drop_caches()
            sequential[contender.name].append(lab.read(contender, data))
            lab.drop_caches()
            how = {"what": "random", "duration_s": DURATION_S, "seed": number}
            scattered[contender.name].append(lab.read(contender, data, **how))
    for contender in contenders:
        one, other = median(sequential[contender.name]), median_rate(scattered[contender.name])
        figures = (one.mb_per_s / 1000, one.cpu_s_per_gb, other.files_per_s, other.cpu_us_per_file)
        table.add(contender.name, *figures)
    ratio = (
        median(sequential["cachefs"]).mb_per_s / median(sequential["bare pyfuse3"]).mb_per_s,
        median_rate(scattered["cachefs"]).files_per_s
        / median_rate(scattered["bare pyfuse3"]).files_per_s,
    )
    for what, value in zip(("sequential", "random 4 KiB"), ratio, strict=True):
        result.bar(f"warm {what}, of bare pyfuse3", value, 0.8, "x", at_least=True)


if __name__ == "__main__":
    main(run)
