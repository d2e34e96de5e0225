"""Readers of one permutation per epoch over three workers with room for 30 % of the data set: with
`admission = fill` the hit ratio equals that share. A second data set reaches it too, once the first
is idle.

A hit is a byte that the origin did not send; the first epoch, which fills, is not counted. The room
is that for cached data: the scratch area of a tier needs 16 MiB more.
"""

from __future__ import annotations

import concurrent.futures
import random
import time
from pathlib import Path

from bench.datasets import MIB, Dataset
from bench.harness import Lab, main
from bench.mounts import BenchFailed
from bench.report import Result, Table
from tests.services.cluster import Cluster, ClusterFailed
from tests.services.processes import NotInTime

NODES = 3
SHARE = 0.30
EPOCHS = 4
IDLE_S = 30.0  # more than two epochs
LAST_READS_S = 10.0  # more than one epoch: its first files have been idle this much longer
OVERHEAD_MIB = 16  # of the scratch area


def run(lab: Lab, result: Result) -> None:
    files = lab.size(3000, 1500)
    first, second = lab.datasets.small(files), lab.datasets.small(files, 100 << 10)
    room = f"{int(first.size_bytes * SHARE / NODES / MIB) + OVERHEAD_MIB}MiB"
    columns = ("data set", "epoch", "read", "from the origin", "hit ratio", "s")
    table = result.table("Room for 30 % of one data set", *columns)
    try:
        with Cluster(lab.root / "cluster", lab.origin.credentials) as cluster:
            cluster.start(NODES, "--idle-after", f"{IDLE_S:g}s", size=room)
            for name, data in (("first", first), ("second", second)):
                cluster.add_ufs(data.url, f"/{name}", "--endpoint-url", lab.origin.proxy_url)
            hit = epochs(lab, cluster, table, "first", first)
            result.bar("hit ratio of the first data set", hit, 0.29, at_least=True)
            time.sleep(IDLE_S + LAST_READS_S)
            hit = epochs(lab, cluster, table, "second", second)
            result.bar("hit ratio of a second one, the first idle", hit, 0.29, at_least=True)
    except (ClusterFailed, NotInTime) as err:
        raise BenchFailed(str(err)) from err


def epochs(lab: Lab, cluster: Cluster, table: Table, name: str, data: Dataset) -> float:
    """Reads `EPOCHS` permutations, each file once by one of the nodes. Returns the mean hit ratio
    of all epochs but the first."""
    mounts = [cluster.mount(n, f"/{name}") for n in range(NODES)]
    ratios: list[float] = []
    for epoch in range(EPOCHS):
        before: int = lab.origin.counters()["object_bytes"]
        started = time.monotonic()
        names = list(data.names)
        random.Random(epoch).shuffle(names)
        with concurrent.futures.ThreadPoolExecutor(NODES) as pool:
            parts = [names[n::NODES] for n in range(NODES)]
            read_bytes = sum(pool.map(read, mounts, parts))
        body: int = lab.origin.counters()["object_bytes"] - before
        ratios.append(1 - body / read_bytes)
        row = (read_bytes, body, f"{ratios[-1]:.3f}", time.monotonic() - started)
        table.add(name, epoch + 1, *row)
    for number, path in enumerate(mounts):
        cluster.workers[number].umount(path)
    return sum(ratios[1:]) / len(ratios[1:])


def read(mount: Path, names: list[str]) -> int:
    return sum(len((mount / name).read_bytes()) for name in names)


if __name__ == "__main__":
    main(run)
