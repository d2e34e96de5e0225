"""Load jobs of a real cluster, by the command line."""

from __future__ import annotations

import concurrent.futures
import re
import time
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket
from tests.integration.dataset import body
from tests.integration.loading import (
    FILE_BYTES,
    LOST_BYTES,
    MANY,
    du,
    ended,
    of_train,
    put_many,
    waiting,
)
from tests.services.cluster import Cluster, ClusterFailed
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy
from worker.runtime.rate import BURST_S

MIB = 1 << 20


def test_a_load_of_a_cluster_outlives_its_master_and_a_worker(
    tmp_path: Path, bucket: Bucket, proxy: FaultProxy
) -> None:
    """Asked at the cluster's own path; the files are where readers look for them, on two workers;
    what is pinned there stays, whatever else is read."""
    total = put_many(bucket, MANY, FILE_BYTES)
    bucket.fill({f"kept/{n}": body(n, MIB) for n in range(8)})
    bucket.fill({f"big/{n}": body(50 + n, 4 * MIB) for n in range(12)})
    with Cluster(tmp_path / "cluster", bucket.server.credentials()) as cluster:
        cluster.start(2, size="32MiB")
        cluster.add_ufs(bucket.url, "/data", *bucket.options)
        machine = cluster.workers[0]
        url, kept = cluster.path("/data/train"), cluster.path("/data/kept")
        with waiting(machine.environment, "load", "--wait", url) as load:
            proxy.wait_until(lambda seen: of_train(seen) > 0.2 * total, 30)
            cluster.master.kill()
            cluster.master.start()
            proxy.wait_until(lambda seen: of_train(seen) > 0.6 * total, 30)
            cluster.workers[1].kill()
            cluster.workers[1].start()
            mount = cluster.mount(0, "/data")
            code, out, err = ended(load)
        assert code == 0, (out, err)
        assert out.startswith(f"OK, loaded {MANY:,} of {MANY:,} files"), out
        fetched = of_train(proxy.counters())
        assert total <= fetched <= total + LOST_BYTES, f"{fetched / total:.2f} times"
        assert du(machine, url)["cached_bytes"] == total

        machine.run("pin", kept, "--wait")
        with pytest.raises(ClusterFailed, match="not all of it is cached"):
            machine.run("pin", mount / "big", "--wait")
        listed = machine.json("jobs", "ls", mount)
        shown = [(Path(*row["paths"]).name, row["state"]) for row in listed]
        assert shown == [("big", "failed"), ("kept", "succeeded"), ("train", "succeeded")]
        why = listed[0]["message"]
        assert re.search("does not fit: it needs .* MiB, the caches hold .* MiB", why), why
        machine.run("unpin", mount / "big")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(Path.read_bytes, sorted((mount / "big").iterdir())))
        assert du(machine, kept)["cached_bytes"] == 8 * MIB


def test_a_load_of_two_copies_takes_every_byte_from_the_origin_once(
    tmp_path: Path, bucket: Bucket, proxy: FaultProxy
) -> None:
    total = put_many(bucket, 100, FILE_BYTES)
    bucket.fill({"train/big": body(1, 9 * MIB)})
    total += 9 * MIB
    with Cluster(tmp_path / "cluster", bucket.server.credentials()) as cluster:
        cluster.start(2, size="64MiB")
        cluster.add_ufs(bucket.url, "/data", *bucket.options)
        cluster.wait_until_settled()
        url = cluster.path("/data/train")
        out = cluster.workers[0].run("load", "--replicas", "2", "--wait", url)
        assert out.startswith("OK, loaded 101 of 101 files"), out
        assert proxy.counters().object_bytes == total
        wait_until(
            lambda: min(row["used_bytes"] for row in cluster.worker_rows()) >= total,
            "both workers say that they have all of it",
        )


def origin_requests(cluster: Cluster) -> list[float]:
    name = "cachefs_worker_origin_requests_total"
    return [cluster.exposed(worker)[name] for worker in cluster.workers]


def test_the_workers_of_a_cluster_share_the_bandwidth_of_a_load(
    tmp_path: Path, bucket: Bucket, proxy: FaultProxy
) -> None:
    """A limit is of all workers together: both bring some, in no less time than the rate and its
    burst allow (each worker may be some files beyond it), and in less than twice that and what as
    many bytes take without a limit."""
    rate, size = 4 * MIB, 128 << 10
    total = put_many(bucket, 160, size)
    bucket.fill({f"free/{n}": body(n, size) for n in range(160)})
    with Cluster(tmp_path / "cluster", bucket.server.credentials()) as cluster:
        cluster.start(2, size="64MiB")
        cluster.add_ufs(bucket.url, "/data", *bucket.options)
        cluster.wait_until_settled()
        url = cluster.path("/data/train")
        started = time.monotonic()
        cluster.workers[0].run("load", "--wait", cluster.path("/data/free"))
        unlimited_s = time.monotonic() - started
        before = origin_requests(cluster)
        started = time.monotonic()
        cluster.workers[0].run("load", "--bandwidth", "4MiB/s", url)
        proxy.wait_until(lambda seen: of_train(seen) == total, 30)
        took_s = time.monotonic() - started
        assert took_s >= (total - rate * BURST_S - 8 * size) / rate, "faster than it may be"
        assert took_s <= 2 * total / rate + unlimited_s, "not half as fast as it may be"
        asked = [now - then for now, then in zip(origin_requests(cluster), before, strict=True)]
        assert min(asked) > 0, f"one of the two brought nothing: {asked}"
