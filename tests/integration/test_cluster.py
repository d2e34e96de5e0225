"""A cluster of real processes by the real command line: one master, several workers, a mount on
each one's machine. Every byte once from the origin, and what each failure may cost.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.conftest import Bucket
from tests.integration.dataset import body, digests, expected, images
from tests.services.cluster import Cluster, Machine
from tests.services.metrics_page import documented, exported, page_of
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy

MIB = 1 << 20
READER = Path(__file__).with_name("reader.py")
LOST_S = 40.0  # until a silent worker is given up, on a busy machine
NODES = 3


def dataset() -> dict[str, bytes]:
    """Small files, and two that are read piece by piece."""
    big = {f"big{n}.bin": body(900 + n, 12 * MIB + 12345 * n) for n in range(2)}
    return {**images(90), **big}


def serve(
    cluster: Cluster, bucket: Bucket, *options: str, size: str = "256MiB"
) -> dict[str, bytes]:
    """Starts three nodes over a filled bucket at /data; what is in it."""
    files = dataset()
    bucket.fill(files)
    cluster.start(NODES, *options, size=size)
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    return files


def cache_status(machine: Machine, mount: Path) -> dict[str, Any]:
    found: dict[str, Any] = machine.json("status", mount)["cache"]
    return found


class Readers:
    """Programs that read mounts and compare with a folder, until they are told to stop."""

    def __init__(self, root: Path, files: dict[str, bytes]) -> None:
        self.root = root
        self.source = root / "source"
        for name, data in files.items():
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.stop = root / "stop"
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, mount: Path, *kinds: str) -> None:
        for kind in kinds:
            command = [sys.executable, READER, kind, mount, self.source, self.stop, "7"]
            process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
            self.processes.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"

    def end(self) -> list[dict[str, Any]]:
        """What each says: rounds that were right, and what went wrong."""
        self.stop.touch()
        found = []
        for process in self.processes:
            out, _ = process.communicate(timeout=60)
            found.append(json.loads(out))
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def readers(root: Path, files: dict[str, bytes]) -> Iterator[Readers]:
    made = Readers(root, files)
    try:
        yield made
    finally:
        made.close()


# ---- reading -------------------------------------------------------------------------------------


def test_three_nodes_read_everything_and_the_origin_gives_every_byte_once(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy
) -> None:
    files = serve(cluster, bucket)
    cluster.wait_until_settled()  # who has heard of the others asks them
    mounts = [cluster.mount(n, "/data") for n in range(NODES)]
    with concurrent.futures.ThreadPoolExecutor(NODES) as pool:
        found = list(pool.map(digests, mounts))
    assert found == [expected(files)] * NODES
    assert proxy.counters().object_bytes == sum(map(len, files.values()))
    for machine, mount in zip(cluster.workers, mounts, strict=True):
        status = cache_status(machine, mount)
        assert status["origin_bytes"], "each owns a share"
        assert status["peer_bytes"], "the rest came from the others"
        assert not status["errors"]
        machine.umount(mount)


def test_a_node_of_its_own_reads_from_the_owners(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy, trainer: Machine
) -> None:
    """A machine without a worker: its mount starts one that owns nothing, and ends with it."""
    files = serve(cluster, bucket)
    cluster.wait_until_settled()
    mount = trainer.mount(cluster.path("/data"), "--cache-size", "256MiB")
    assert digests(mount) == expected(files)
    status = cache_status(trainer, mount)
    assert status["origin_bytes"] == 0
    assert status["peer_bytes"] == sum(map(len, files.values()))
    assert proxy.counters().object_bytes == status["peer_bytes"]
    assert sorted(row["weight"] > 0 for row in cluster.worker_rows()) == [False] + 3 * [True]
    trainer.umount(mount)
    wait_until(lambda: len(cluster.worker_rows()) == NODES, "it has left")


def test_everything_is_warm_after_a_restart_of_all(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy
) -> None:
    files = serve(cluster, bucket)
    mount = cluster.mount(0, "/data")
    assert digests(mount) == expected(files)
    cluster.workers[0].umount(mount)
    cluster.wait_until_recorded()
    for machine in (*cluster.workers, cluster.master):
        machine.kill()
    for machine in (cluster.master, *cluster.workers):
        machine.start()
    cluster.wait_until_met()
    before = proxy.counters().object_bytes
    mount = cluster.mount(1, "/data")
    assert digests(mount) == expected(files)
    assert proxy.counters().object_bytes == before
    cluster.workers[1].umount(mount)


# ---- failures ------------------------------------------------------------------------------------


def test_a_worker_killed_under_readers_costs_its_share_once(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    """[S-cluster-worker-lost]"""
    cluster.lose_soon()
    files = serve(cluster, bucket)
    mounts = [cluster.mount(n, "/data") for n in (0, 1)]
    with readers(tmp_path, files) as reading:
        for mount in mounts:
            reading.start(mount, "open", "hold")
        cluster.workers[2].kill()
        wait_until(
            lambda: [row["state"] for row in cluster.worker_rows()].count("lost") == 1,
            "the killed worker is lost",
            LOST_S,
        )
        said = reading.end()
    assert all(one["rounds"] and not one["errors"] for one in said), said
    assert [digests(mount) for mount in mounts] == [expected(files)] * 2
    total = sum(map(len, files.values()))
    # What the third had, and what two readers asked the origin for while it was not yet lost.
    assert proxy.counters().object_bytes <= 2 * total
    for number, mount in enumerate(mounts):
        cluster.workers[number].umount(mount)


def test_a_worker_that_hangs_is_read_around(
    cluster: Cluster, bucket: Bucket, tmp_path: Path
) -> None:
    """[S-cluster-worker-lost]"""
    cluster.lose_soon()
    files = serve(cluster, bucket)
    cluster.wait_until_settled()  # its blocks are asked of it
    mount = cluster.mount(0, "/data")
    cluster.workers[2].send(signal.SIGSTOP)
    try:
        assert digests(mount) == expected(files)
    finally:
        cluster.workers[2].send(signal.SIGCONT)
    cluster.wait_for_states(*NODES * ["serving"])
    cluster.workers[0].umount(mount)


def test_the_master_killed_under_readers_and_started_again(
    cluster: Cluster, bucket: Bucket, tmp_path: Path
) -> None:
    """[S-cluster-master-down]: known files go on; everything does once it is back. Nobody loses
    its place."""
    files = serve(cluster, bucket)
    mount = cluster.mount(0, "/data")
    assert digests(mount) == expected(files)
    epoch = cluster.epoch()
    with readers(tmp_path, files) as reading:
        reading.start(mount, "open", "hold", "map")
        cluster.master.kill()
        known = mount / next(iter(files))
        assert known.read_bytes() == next(iter(files.values()))
        cluster.master.start()
        cluster.wait_for_states(*NODES * ["serving"])
        said = reading.end()
    assert all(one["rounds"] and not one["errors"] for one in said), said
    assert cluster.epoch() == epoch
    cluster.workers[0].umount(mount)


def test_a_rolling_restart_under_readers(cluster: Cluster, bucket: Bucket, tmp_path: Path) -> None:
    files = serve(cluster, bucket)
    mount = cluster.mount(0, "/data")
    with readers(tmp_path, files) as reading:
        reading.start(mount, "open", "hold", "walk")
        for machine in (*cluster.workers, cluster.master):
            machine.stop()
            machine.start()
        cluster.wait_for_states(*NODES * ["serving"])  # and no other one of the mount's own
        said = reading.end()
    assert all(one["rounds"] and not one["errors"] for one in said), said
    cluster.workers[0].umount(mount)


def test_a_flipped_byte_in_a_peers_copy_is_found_and_fetched_again(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy, trainer: Machine
) -> None:
    """[S-cluster-bytes]"""
    files = serve(cluster, bucket)
    cluster.wait_until_settled()  # so that all is with its owners, who are asked by the trainer
    mount = cluster.mount(0, "/data")
    assert digests(mount) == expected(files)
    cluster.workers[0].umount(mount)
    flipped = 0
    for path in cluster.root.glob("node*/tier/files/*/*"):
        flip(path, path.stat().st_size // 2)
        flipped += 1
    assert flipped >= len(files)
    before = proxy.counters().object_bytes
    mount = trainer.mount(cluster.path("/data"), "--cache-size", "256MiB")
    assert digests(mount) == expected(files)
    assert proxy.counters().object_bytes > before
    assert trainer.json("status", mount)["peers"]["wrong_pages"] >= len(files)
    trainer.umount(mount)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


# ---- members -------------------------------------------------------------------------------------


def test_blocks_move_to_a_worker_that_joins_and_the_origin_is_not_asked(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy
) -> None:
    files = serve(cluster, bucket)
    mount = cluster.mount(0, "/data")
    assert digests(mount) == expected(files)
    cluster.wait_until_recorded()
    before = proxy.counters().object_bytes
    added = cluster.add_worker(size="256MiB")
    other = added.mount(cluster.path("/data"))
    assert digests(other) == expected(files)
    cluster.wait_until_settled(60.0)
    assert proxy.counters().object_bytes == before
    added.umount(other)
    cluster.workers[0].umount(mount)


def test_a_drained_worker_hands_over_what_it_has(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy
) -> None:
    files = serve(cluster, bucket)
    mount = cluster.mount(0, "/data")
    assert digests(mount) == expected(files)
    cluster.workers[0].umount(mount)
    cluster.wait_until_recorded()
    before = proxy.counters().object_bytes
    leaving = cluster.workers[2]
    identity = next(row["id"] for row in cluster.worker_rows() if row["url"] == leaving.url)
    cluster.master.run("workers", "drain", identity, "--wait", "--master", cluster.master.url)
    leaving.stop()
    mount = cluster.mount(1, "/data")
    assert digests(mount) == expected(files)
    assert proxy.counters().object_bytes == before
    cluster.workers[1].umount(mount)


# ---- metrics -------------------------------------------------------------------------------------


def test_every_process_answers_prometheus(cluster: Cluster, bucket: Bucket) -> None:
    serve(cluster, bucket)
    mount = cluster.mount(0, "/data")
    (mount / "big0.bin").read_bytes()
    for machine, prefix in ((cluster.workers[0], "cachefs_worker_"), (cluster.master, "cachefs_m")):
        text = page_of(machine.url, cluster.headers)
        assert {name for name, _, _ in exported(text, prefix)} == {
            name for name, _, _ in documented(prefix)
        }
    cluster.workers[0].umount(mount)
