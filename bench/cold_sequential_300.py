"""A cold sequential read of 8 GiB runs at the origin's rate: >= 0.95 x the shape (300 MB/s and 15
ms), with at most 0.7 s of CPU per GB (client and server) more than obstore into the same place.

obstore takes 16 ranges of 8 MiB at a time into a file on the same tmpfs. rclone's mount2 reads 2
GiB. The origin is the light one, so that it leaves the CPUs to those who are measured. The kernel
forgets the pages that were read, as it does with data larger than memory: a virtual machine gets
its last gigabytes from its host, at many times the price of a copy.
"""

from __future__ import annotations

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main, median
from bench.mounts import Mounted
from bench.report import Result

RATE_BYTES_PER_S = 300e6
LATENCY_S = 0.015
MORE_CPU_S_PER_GB = 0.7


def run(lab: Lab, result: Result) -> None:
    data, peers = lab.datasets.sparse(lab.size(8192, 512)), lab.datasets.sparse(lab.size(2048, 512))
    passes: dict[str, list[Pass]] = {"cachefs": [], "obstore": [], "rclone mount2": []}
    with lab.light() as origin:
        origin.shape(RATE_BYTES_PER_S, LATENCY_S)
        for _ in range(lab.runs):
            mounting = lab.ours(
                data.url, "--transport", "kernel", url=origin.url, cache_size="10GiB"
            )
            with mounting as mount:
                passes["cachefs"].append(cold(lab, mount, data))
            passes["obstore"].append(lab.obstore("obstore_to_file", data, origin.url))
        with lab.rclone(peers, origin.url) as mount:
            passes["rclone mount2"].append(cold(lab, mount, peers))
    title = f"{data.size_bytes / 1e9:.1f} GB, once; {peers.size_bytes / 1e9:.1f} GB by rclone"
    columns = ("who", "MB/s", "of the shape", "CPU s per GB", "runs")
    table = result.table(title, *columns)
    for who, runs in passes.items():
        one = median(runs)
        table.add(who, one.mb_per_s, share(one), one.cpu_s_per_gb, len(runs))
    ours, obstore = median(passes["cachefs"]), median(passes["obstore"])
    result.bar("cold sequential, of the shaped rate", share(ours), 0.95, "x", at_least=True)
    limit = obstore.cpu_s_per_gb + MORE_CPU_S_PER_GB
    result.bar("cold sequential, CPU per GB", ours.cpu_s_per_gb, limit, "s")
    result.notes.append("CPU: all processes of a file system; the whole process of obstore.")


def share(one: Pass) -> float:
    return one.mb_per_s * 1e6 / RATE_BYTES_PER_S


def cold(lab: Lab, mount: Mounted, data: Dataset) -> Pass:
    lab.drop_caches()
    return lab.read(mount, data, forget=True)


if __name__ == "__main__":
    main(run)
