"""Several owners of each block, on a real cluster: the loss of one of them costs no byte of the
origin, and one that does not answer costs no reader its deadline.
"""

from __future__ import annotations

import signal
import time

from cachefs.cli.output import INCOMPLETE
from tests.integration.conftest import Bucket
from tests.integration.dataset import body, digest, expected, images
from tests.services.cluster import Cluster, Machine
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy
from worker.peers.connections import PART_S

MIB = 1 << 20
NODES = 3
SLOW_S = PART_S / 2  # who waits for a peer that does not answer waits for PART_S


def wait_for_bytes(cluster: Cluster, count: int) -> None:
    """Until the workers that are there have so many in all."""

    def there() -> bool:
        rows = [row for row in cluster.worker_rows() if row["state"] != "lost"]
        return sum(row["used_bytes"] for row in rows) >= count

    wait_until(there, f"the workers have {count} bytes", 40.0)


def wait_for_places(cluster: Cluster, machine: Machine) -> None:
    """Until both owners have all of each block."""

    def there() -> bool:
        for row in machine.json("location", cluster.path("/data"), codes=(0, INCOMPLETE)):
            whole = {one["worker"] for one in row["cached"] if one["pages"] == row["pages"]}
            assert len(row["owners"]) == 2
            if not {*row["owners"]} <= whole:
                return False
        return True

    wait_until(there, "both owners have everything", 40.0)


def test_with_two_owners_the_loss_of_one_costs_no_byte_of_the_origin(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy, trainer: Machine
) -> None:
    """[S-replicas], [S-local-copy] and one that does not answer is outrun by the other."""
    files = {**images(60), "big.bin": body(9, 20 * MIB + 5)}
    bucket.fill(files)
    cluster.lose_soon()
    cluster.start(NODES, size="256MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    cluster.wait_until_settled()
    trainer.run("policy", "set", cluster.path("/data"), "replicas=2", "local_copy=never")

    mount = trainer.mount(cluster.path("/data"))
    read = {name: digest((mount / name).read_bytes()) for name in files}
    assert read == expected(files)
    total = sum(map(len, files.values()))
    assert proxy.counters().object_bytes == total, "every byte once, however many own it"
    wait_for_bytes(cluster, 2 * total)
    wait_for_places(cluster, trainer)
    assert proxy.counters().object_bytes == total, "the second owner had it from the first"
    trainer.umount(mount)

    mount = trainer.mount(cluster.path("/data"), name="again")
    names = sorted(files)
    again = {}
    for n, name in enumerate(names):
        if n == len(names) // 3:
            cluster.workers[0].kill()
        again[name] = digest((mount / name).read_bytes())
    assert again == expected(files)
    (tier,) = trainer.json("status", mount)["cache"]["tiers"]
    assert tier["cached_bytes"] == 0, "nothing of others' is kept here"
    assert proxy.counters().object_bytes == total, "the epoch went on with the other owners"
    wait_for_bytes(cluster, 2 * total)
    wait_for_places(cluster, trainer)  # those that are left
    trainer.umount(mount)

    mount = trainer.mount(cluster.path("/data"), name="third")
    stopped = cluster.workers[1]
    stopped.send(signal.SIGSTOP)
    try:
        started_s = time.monotonic()
        third = {name: digest((mount / name).read_bytes()) for name in names[:30]}
        took_s = time.monotonic() - started_s
    finally:
        stopped.send(signal.SIGCONT)
    assert third == {name: digest(files[name]) for name in names[:30]}
    assert trainer.json("status", mount)["peers"]["hedges"] > 0
    assert took_s < SLOW_S, "a reader waited for the worker that does not answer"
    assert proxy.counters().object_bytes == total
    trainer.umount(mount)
