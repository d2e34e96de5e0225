"""Cold reads of HDFS through a mount, of the rate of hdfs-native alone: one file sequentially >=
0.8 x, 5,000 files of 110 KiB by 16 readers >= 0.8 x.

A NameNode and two DataNodes, two replicas, on the same machine: their CPU time counts in both. The
contenders take turns. hdfs-native alone stores nothing.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from bench import machine
from bench.datasets import Dataset
from bench.harness import GB, Lab, Pass, main
from bench.peers import OURS, Act, cold
from bench.report import Result
from tests.services.hdfs import HdfsCluster, hdfs_cluster
from tests.services.hdfs_files import write

STREAM, RANGES, FILES = "hdfs-native, stream", "hdfs-native, ranges", "hdfs-native"
READERS = 16
AT_LEAST = 0.8


class Turn(NamedTuple):
    """One pass, and what the NameNode and the DataNodes took for it."""

    one: Pass
    hdfs_cpu_s: float


def run(lab: Lab, result: Result) -> None:
    big = lab.datasets.big(lab.size(512, 64))
    small = lab.datasets.small(lab.size(5000, 500))
    (lab.root / "hdfs").mkdir()
    with hdfs_cluster(lab.root / "hdfs") as cluster:
        for data in (big, small):
            upload(cluster, data)
        alone = {STREAM: "hdfs_stream", RANGES: "hdfs_ranges"}
        of_big = turns(lab, cluster, contenders(lab, cluster, big, alone, 1))
        acts = contenders(lab, cluster, small, {FILES: "hdfs_files"}, READERS)
        of_small = turns(lab, cluster, acts)
    title = f"{big.size_bytes / 1e6:,.0f} MB, once, one reader"
    table = result.table(title, "who", "MB/s", "CPU s per GB", "HDFS's CPU s per GB", "runs")
    for who, passes in of_big.items():
        one, hdfs_cpu_s = middle(passes)
        table.add(who, one.mb_per_s, one.cpu_s_per_gb, hdfs_cpu_s / one.bytes * GB, len(passes))
    title = f"{len(small.names):,} files of 110 KiB, {READERS} readers"
    table = result.table(title, "who", "files/s", "CPU us per file", "HDFS's CPU us", "runs")
    for who, passes in of_small.items():
        one, hdfs_cpu_s = middle(passes)
        table.add(
            who, one.files_per_s, one.cpu_us_per_file, hdfs_cpu_s / one.files * 1e6, len(passes)
        )
    bar(result, "cold sequential, of the rate of hdfs-native's stream", of_big, STREAM)
    bar(result, "cold sequential, of the rate of hdfs-native's ranges", of_big, RANGES)
    bar(result, "cold small files, of hdfs-native's rate", of_small, FILES)
    result.notes.append("CPU: all processes of the mount; the whole process of hdfs-native.")


def middle(passes: list[Turn]) -> Turn:
    """Returns the turn with the median wall time."""
    return sorted(passes, key=lambda each: each.one.wall_s)[len(passes) // 2]


def bar(result: Result, claim: str, passes: dict[str, list[Turn]], alone: str) -> None:
    ratio = middle(passes[alone]).one.wall_s / middle(passes[OURS]).one.wall_s
    result.bar(claim, ratio, AT_LEAST, "x", at_least=True)


def upload(cluster: HdfsCluster, data: Dataset) -> None:
    """Writes a data set below `/<bucket>`."""
    client = cluster.client()

    def put(name: str) -> None:
        write(client, f"/{data.bucket}/{name}", (data.folder / name).read_bytes())

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(put, json.loads(data.checksums.read_text())))


def contenders(
    lab: Lab, cluster: HdfsCluster, data: Dataset, alone: dict[str, str], readers: int
) -> dict[str, Act]:
    source = f"{cluster.url}/{data.bucket}"

    def client(what: str) -> Act:
        return lambda: lab.hdfs_client(what, data, cluster.url, readers)

    ours = cold(lab, lambda: lab.ours(source), data, readers=readers)
    return {OURS: ours} | {who: client(what) for who, what in alone.items()}


def turns(lab: Lab, cluster: HdfsCluster, acts: dict[str, Act]) -> dict[str, list[Turn]]:
    pids = [part.pid for part in cluster.parts]
    passes: dict[str, list[Turn]] = {who: [] for who in acts}
    for _ in range(lab.runs):
        for who, act in acts.items():
            before_s = machine.cpu_s(pids)
            one = act()
            passes[who].append(Turn(one, machine.cpu_s(pids) - before_s))
    return passes


if __name__ == "__main__":
    main(run)
