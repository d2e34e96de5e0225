"""Cold reads of HDFS through a mount, of the rate of hdfs-native alone: one file sequentially >=
0.8 x, 5,000 files of 110 KiB by 16 readers >= 0.8 x.

A NameNode and two DataNodes, two replicas, on the same machine: their CPU time counts in both. The
contenders take turns. hdfs-native alone stores nothing.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main, median
from bench.peers import OURS, Act, cold
from bench.report import Result
from tests.services.hdfs import HdfsCluster, hdfs_cluster
from tests.services.hdfs_files import write

STREAM, RANGES, FILES = "hdfs-native, stream", "hdfs-native, ranges", "hdfs-native"
READERS = 16
AT_LEAST = 0.8


def run(lab: Lab, result: Result) -> None:
    big = lab.datasets.big(lab.size(512, 64))
    small = lab.datasets.small(lab.size(5000, 500))
    (lab.root / "hdfs").mkdir()
    with hdfs_cluster(lab.root / "hdfs") as cluster:
        for data in (big, small):
            upload(cluster, data)
        alone = {STREAM: "hdfs_stream", RANGES: "hdfs_ranges"}
        of_big = turns(lab, contenders(lab, cluster, big, alone, 1))
        of_small = turns(lab, contenders(lab, cluster, small, {FILES: "hdfs_files"}, READERS))
    title = f"{big.size_bytes / 1e6:,.0f} MB, once, one reader"
    table = result.table(title, "who", "MB/s", "CPU s per GB", "runs")
    for who, passes in of_big.items():
        one = median(passes)
        table.add(who, one.mb_per_s, one.cpu_s_per_gb, len(passes))
    title = f"{len(small.names):,} files of 110 KiB, {READERS} readers"
    table = result.table(title, "who", "files/s", "CPU us per file", "runs")
    for who, passes in of_small.items():
        one = median(passes)
        table.add(who, one.files_per_s, one.cpu_us_per_file, len(passes))
    bar(result, "cold sequential, of the rate of hdfs-native's stream", of_big, STREAM)
    bar(result, "cold sequential, of the rate of hdfs-native's ranges", of_big, RANGES)
    bar(result, "cold small files, of hdfs-native's rate", of_small, FILES)
    result.notes.append("CPU: all processes of the mount; the whole process of hdfs-native.")


def bar(result: Result, claim: str, passes: dict[str, list[Pass]], alone: str) -> None:
    ratio = median(passes[alone]).wall_s / median(passes[OURS]).wall_s
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


def turns(lab: Lab, acts: dict[str, Act]) -> dict[str, list[Pass]]:
    passes: dict[str, list[Pass]] = {who: [] for who in acts}
    for _ in range(lab.runs):
        for who, act in acts.items():
            passes[who].append(act())
    return passes


if __name__ == "__main__":
    main(run)
