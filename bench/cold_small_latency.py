"""Cold files of 110 KiB, 64 in flight, origin with 20 ms of latency: >= 0.9 x obstore with as many
threads, and at most 0.4 ms of CPU per file (client and server) more than obstore.

64 readers, and so many threads of obstore. They read in the order of the names, so what they will
open is read ahead: the origin is asked for more than 64 files at a time. In a shuffled order
nothing is foreseen, and 64 is all there is; both are shown. rclone's mount2 stands beside, and
obstore with as many threads as ours has requests in flight at most. The origin is the light one: 64
requests in 20 ms are 3,200 a second, which a real server cannot answer on the CPUs that all share.
"""

from __future__ import annotations

from collections import defaultdict

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main, median
from bench.mounts import Mounted
from bench.report import Result
from connectors.fetch.request import AT_ONCE

LATENCY_S = 0.02
IN_FLIGHT = 64
MORE_CPU_US = 400.0
SHUFFLED = "cachefs, shuffled"
MANY = f"obstore, {AT_ONCE} threads"


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(8000, 1000))
    passes: defaultdict[str, list[Pass]] = defaultdict(list)
    with lab.light() as origin:
        origin.shape(None, LATENCY_S)
        for _ in range(lab.runs):
            for who in ("cachefs", SHUFFLED):
                with lab.ours(data.url, "--transport", "kernel", url=origin.url) as mount:
                    passes[who].append(cold(lab, mount, data, shuffled=who == SHUFFLED))
            for who, threads in (("obstore", IN_FLIGHT), (MANY, AT_ONCE)):
                passes[who].append(lab.obstore("obstore_files", data, origin.url, threads))
        with lab.rclone(data, origin.url) as mount:
            passes["rclone mount2"].append(cold(lab, mount, data))
    show(result, passes, f"{len(data.names):,} files of 110 KiB, {IN_FLIGHT} readers")
    ours, obstore = median(passes["cachefs"]), median(passes["obstore"])
    ratio = ours.files_per_s / obstore.files_per_s
    result.bar("cold small files, of obstore's rate", ratio, 0.9, "x", at_least=True)
    limit = obstore.cpu_us_per_file + MORE_CPU_US
    result.bar("cold small files, CPU per file", ours.cpu_us_per_file, limit, "us")
    result.notes.append("CPU: all processes of a file system; the whole process of obstore.")


def show(result: Result, passes: dict[str, list[Pass]], title: str) -> None:
    table = result.table(title, "who", "files/s", "of the latency's", "CPU us per file", "runs")
    for who, runs in passes.items():
        one = median(runs)
        share = one.files_per_s * LATENCY_S / IN_FLIGHT
        table.add(who, one.files_per_s, share, one.cpu_us_per_file, len(runs))


def cold(lab: Lab, mount: Mounted, data: Dataset, *, shuffled: bool = False) -> Pass:
    lab.drop_caches()
    return lab.read(mount, data, readers=IN_FLIGHT, shuffled=shuffled)


if __name__ == "__main__":
    main(run)
