"""Three workers and three mounts read a data set once each at the same time: the origin sends every
byte once.

The proxy in front of the origin counts the body bytes. The big files are mostly holes at the
origin, and fully written in the caches.
"""

from __future__ import annotations

import concurrent.futures
import time

from bench.harness import Lab, main
from bench.mounts import BenchFailed, Mounted
from bench.report import Result
from tests.services.cluster import Cluster, ClusterFailed
from tests.services.processes import NotInTime

NODES = 3
READERS = 4  # of each mount


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.training(lab.size(20_000, 300), 4, lab.size(2048, 16))
    room = f"{round(data.size_bytes * 1.25 / NODES / (1 << 20)) + 64}MiB"
    columns = ("reading", "file bytes", "read", "body bytes", "ratio", "GETs", "s")
    table = result.table("Three nodes, each reads everything once", *columns)
    try:
        with Cluster(lab.root / "cluster", lab.origin.credentials) as cluster:
            cluster.start(NODES, size=room)
            cluster.add_ufs(data.url, "/data", "--endpoint-url", lab.origin.proxy_url)
            mounts = [cluster.mount(n, "/data") for n in range(NODES)]
            before, started = lab.origin.counters(), time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(NODES) as pool:
                reads = [
                    pool.submit(lab.read, Mounted(f"node {n}", path, []), data, readers=READERS)
                    for n, path in enumerate(mounts)
                ]
                read_bytes = sum(read.result().bytes for read in reads)
            wall_s, after = time.monotonic() - started, lab.origin.counters()
            for number, path in enumerate(mounts):
                cluster.workers[number].umount(path)
    except (ClusterFailed, NotInTime) as err:
        raise BenchFailed(str(err)) from err
    body = after["object_bytes"] - before["object_bytes"]
    gets = after["requests"]["GET"] - before["requests"].get("GET", 0)
    ratio = f"{body / data.size_bytes:.4f}"
    table.add("all at once", data.size_bytes, read_bytes, body, ratio, gets, wall_s)
    result.bar("bytes from the origin beyond the files'", body - data.size_bytes, 0, "B")


if __name__ == "__main__":
    main(run)
