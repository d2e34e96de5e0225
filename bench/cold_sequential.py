"""A cold sequential read runs at the origin's rate: >= 0.95 x the shape (150 MB/s and 15 ms).

Beside it obstore (16 threads, 8 MiB ranges) and rclone's mount2, each with the CPU it needs per GB.
"""

from __future__ import annotations

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main, median
from bench.mounts import Mounted
from bench.report import Result

RATE_BYTES_PER_S = 150e6
LATENCY_S = 0.015


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.big(lab.size(512, 128))
    lab.origin.shape(RATE_BYTES_PER_S, LATENCY_S)
    url = lab.origin.proxy_url
    passes: dict[str, list[Pass]] = {"cachefs": [], "obstore": [], "rclone mount2": []}
    for _ in range(lab.runs):
        with lab.ours(data.url, url=url) as mount:
            passes["cachefs"].append(cold(lab, mount, data))
        passes["obstore"].append(lab.obstore("obstore_file", data, url))
        with lab.rclone(data, url) as mount:
            passes["rclone mount2"].append(cold(lab, mount, data))
    table = result.table(
        f"{data.size_bytes / 1e6:,.0f} MB, once, median of {lab.runs}",
        *("who", "MB/s", "of the shape", "CPU s per GB"),
    )
    for who, runs in passes.items():
        one = median(runs)
        table.add(who, one.mb_per_s, one.mb_per_s * 1e6 / RATE_BYTES_PER_S, one.cpu_s_per_gb)
    ours = median(passes["cachefs"]).mb_per_s * 1e6 / RATE_BYTES_PER_S
    result.bar("cold sequential, of the shaped rate", ours, 0.95, "x", at_least=True)
    result.notes.append("CPU: client and server of a file system; the whole process of obstore.")


def cold(lab: Lab, mount: Mounted, data: Dataset) -> Pass:
    lab.drop_caches()
    return lab.read(mount, data)


if __name__ == "__main__":
    main(run)
