"""Cold files of 110 KiB, 64 in flight, origin with 20 ms of latency: >= 0.9 x obstore with as many
threads, and at most 0.4 ms of CPU per file (client and server) more than obstore.

rclone's mount2 stands beside. The origin is the light one: 64 requests in 20 ms are 3,200 a second,
which a real server cannot answer on the CPUs that all share here.
"""

from __future__ import annotations

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main, median
from bench.mounts import Mounted
from bench.report import Result

LATENCY_S = 0.02
IN_FLIGHT = 64
MORE_CPU_US = 400.0


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(8000, 1000))
    passes: dict[str, list[Pass]] = {"cachefs": [], "obstore": [], "rclone mount2": []}
    with lab.light() as origin:
        origin.shape(None, LATENCY_S)
        for _ in range(lab.runs):
            with lab.ours(data.url, "--transport", "kernel", url=origin.url) as mount:
                passes["cachefs"].append(cold(lab, mount, data))
            passes["obstore"].append(lab.obstore("obstore_files", data, origin.url, IN_FLIGHT))
        with lab.rclone(data, origin.url) as mount:
            passes["rclone mount2"].append(cold(lab, mount, data))
    title = f"{len(data.names):,} files of 110 KiB, {IN_FLIGHT} readers"
    table = result.table(title, "who", "files/s", "of the latency's", "CPU us per file", "runs")
    for who, runs in passes.items():
        one = median(runs)
        share = one.files_per_s * LATENCY_S / IN_FLIGHT
        table.add(who, one.files_per_s, share, one.cpu_us_per_file, len(runs))
    ours, obstore = median(passes["cachefs"]), median(passes["obstore"])
    ratio = ours.files_per_s / obstore.files_per_s
    result.bar("cold small files, of obstore's rate", ratio, 0.9, "x", at_least=True)
    limit = obstore.cpu_us_per_file + MORE_CPU_US
    result.bar("cold small files, CPU per file", ours.cpu_us_per_file, limit, "us")
    result.notes.append("CPU: all processes of a file system; the whole process of obstore.")


def cold(lab: Lab, mount: Mounted, data: Dataset) -> Pass:
    lab.drop_caches()
    return lab.read(mount, data, readers=IN_FLIGHT)


if __name__ == "__main__":
    main(run)
