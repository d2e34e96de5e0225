"""Four ranks of a training run, each on a machine with a network of its own: nearly all samples are
read on the node that owns them, and every global batch has the samples that it has otherwise."""

from __future__ import annotations

import concurrent.futures
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from cachefs.core.orders import Order
from cachefs.core.placement import Member
from cachefs.launcher.state import StateHome
from cachefs.trainers.batch_shares import Locality
from cachefs.trainers.find_locality import node_view
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.sampler import OrderSampler
from tests.integration.conftest import Bucket
from tests.integration.dataset import images
from tests.integration.test_cluster_faults import NetCluster
from tests.services.cluster import Machine
from tests.services.metrics_page import page_of
from tests.services.networks import Networks
from tests.services.proxy import FaultProxy

RANKS = 4
BATCH = 256  # samples of a rank and step
STEPS = 2
SIZE = 8_000
LEAST_LOCAL = 0.95
SEED = 7


def home_of(worker: Machine) -> StateHome:
    return StateHome(worker.root / ".cache" / "cachefs")


def locality_of(manifests: Sequence[Manifest]) -> Locality:
    """What `locality=True` finds, without a process group."""
    views = [node_view(manifest) for manifest in manifests]
    assert len({node for node, _ in views}) == RANKS
    weights = views[0][1]
    assert all(known == weights for _, known in views)
    members = tuple(Member(id, "", weight) for id, weight in sorted(weights.items()))
    return Locality(members, tuple(node for node, _ in views))


def bytes_of(cluster: NetCluster, source: str) -> float:
    line = re.compile(rf'^cachefs_worker_bytes_total{{source="{source}"}} (\S+)$', re.MULTILINE)
    pages = [page_of(worker.url, cluster.headers) for worker in cluster.workers]
    return sum(float(line.findall(page)[0]) for page in pages)


def read(manifest: Manifest, samples: Sequence[int], files: dict[str, bytes]) -> int:
    """Reads a rank's samples through its mount. Returns their bytes."""
    count = 0
    for sample in samples:
        data = Path(manifest.file(sample).decode()).read_bytes()
        assert data == files[manifest.relative(sample).decode()]
        count += len(data)
    return count


@pytest.mark.timeout(180)
def test_nearly_all_samples_are_read_on_the_node_that_owns_them(
    tmp_path: Path, bucket: Bucket
) -> None:
    files = images(RANKS * BATCH * STEPS, SIZE)
    bucket.fill(files)
    with (
        Networks(RANKS + 1) as networks,
        FaultProxy(bucket.endpoint_url, host=networks.here) as proxy,
        NetCluster(tmp_path / "cluster", bucket.server.credentials(), networks) as cluster,
    ):
        cluster.start(RANKS, size="256MiB")
        cluster.add_ufs(bucket.url, "/data", "--endpoint-url", proxy.endpoint_url)
        mounts = [cluster.mount(rank, "/data") for rank in range(RANKS)]
        cluster.wait_until_settled()
        manifests = [
            Manifest(mount, home=str(home_of(worker).path))
            for mount, worker in zip(mounts, cluster.workers, strict=True)
        ]
        locality = locality_of(manifests)
        samplers = [
            OrderSampler(
                manifest,
                seed=SEED,
                rank=rank,
                world_size=RANKS,
                locality=locality,
                batch_size=BATCH,
            )
            for rank, manifest in enumerate(manifests)
        ]
        shares = [[*sampler] for sampler in samplers]
        order = Order(len(files), SEED, 0)
        for step in range(STEPS):
            batch = [s for share in shares for s in share[step * BATCH : (step + 1) * BATCH]]
            whole = range(step * RANKS * BATCH, (step + 1) * RANKS * BATCH)
            assert sorted(batch) == sorted(order.indices(whole))
        with concurrent.futures.ThreadPoolExecutor(RANKS) as pool:
            read_bytes = sum(pool.map(read, manifests, shares, [files] * RANKS))
        assert read_bytes == sum(map(len, files.values()))
        cluster.wait_until_recorded()
        local = 1 - bytes_of(cluster, "peer") / read_bytes
        assert local >= LEAST_LOCAL
        assert bytes_of(cluster, "origin") == proxy.counters().object_bytes == read_bytes
        for worker, mount in zip(cluster.workers, mounts, strict=True):
            worker.umount(mount)
