"""What breaks a cluster: partitions, full and stopped machines, objects that change, operators.
Real processes by the real command line; nobody reads a wrong byte, and every read ends in time.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket
from tests.integration.dataset import digests, expected, images
from tests.services.cluster import (
    CACHEFS,
    COMMAND_LIMIT_S,
    Cluster,
    ClusterFailed,
    Machine,
    wait_for,
)
from tests.services.networks import Networks
from tests.services.proxy import FaultProxy

MIB = 1 << 20
NODES = 3
READ_S = 30.0  # whatever breaks, a read has ended by then
LOST_S = 40.0  # until a silent worker is given up, on a busy machine


@pytest.fixture
def cluster(tmp_path: Path, bucket: Bucket) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", bucket.server.credentials()) as made:
        yield made


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[FaultProxy]:
    with FaultProxy(bucket.endpoint_url) as between:
        bucket.endpoint_url = between.endpoint_url
        yield between


def serve(
    cluster: Cluster,
    bucket: Bucket,
    files: dict[str, bytes],
    *options: str,
    workers: int = NODES,
    size: str = "256MiB",
) -> None:
    """Starts nodes over a filled bucket at /data; `options` of the source."""
    bucket.fill(files)
    cluster.start(workers, size=size)
    cluster.add_ufs(bucket.url, "/data", *bucket.options, *options)


def right(mounts: list[Path], files: dict[str, bytes]) -> None:
    """All mounts read at once, give the right bytes, and end in time."""
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(mounts)) as pool:
        found = list(pool.map(digests, mounts))
    assert found == [expected(files)] * len(mounts)
    assert time.monotonic() - began < READ_S


# ---- partitions ----------------------------------------------------------------------------------


class NetMachine(Machine):
    """A machine with a network of its own."""

    enter: tuple[str, ...] = ()

    def run(self, *arguments: str | Path, limit_s: float = COMMAND_LIMIT_S) -> str:
        done = subprocess.run(
            [*self.enter, CACHEFS, *map(str, arguments)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise ClusterFailed(f"{self.name}: cachefs {arguments[0]}: {said}{self.log_tail()}")
        return done.stdout


class NetCluster(Cluster):
    """Each machine in a network of its own; network 0 is the master's. All ask for a token."""

    def __init__(self, root: Path, environment: dict[str, str], networks: Networks) -> None:
        self.networks = networks
        self._next = 0
        root.mkdir()
        self.token_file = root / "token"
        self.token_file.touch(0o600)
        self.token_file.write_text(secrets.token_hex(32))
        super().__init__(root, {**environment, "CACHEFS_TOKEN_FILE": str(self.token_file)})
        self.master.command[2] = f"{networks.address(0)}:0"

    def _machine(self, name: str) -> Machine:
        machine = NetMachine(name, self.root / name, dict(self._environment))
        machine.enter = tuple(self.networks.enter(self._next))
        self._next += 1
        return machine

    def add_worker(self, *options: str, size: str = "1GiB") -> Machine:
        listen = f"{self.networks.address(self._next)}:0"
        return super().add_worker("--listen", listen, *options, size=size)


def test_a_partition_costs_time_and_no_byte(tmp_path: Path, bucket: Bucket) -> None:
    """A worker cut off from its peers, then from the master too, then from nobody."""
    files = images(60)
    bucket.fill(files)
    with (
        Networks(NODES + 1) as networks,
        FaultProxy(bucket.endpoint_url, host=networks.here) as proxy,
        NetCluster(tmp_path / "cluster", bucket.server.credentials(), networks) as cluster,
    ):
        cluster.start(NODES, size="256MiB")
        cluster.add_ufs(bucket.url, "/data", "--endpoint-url", proxy.endpoint_url)
        mounts = [cluster.mount(n, "/data") for n in (0, 2)]
        epoch = cluster.epoch()

        networks.cut(
            3, (1, 2)
        )  # the third worker from its peers: all reads end, some at the origin
        right(mounts, files)
        assert cluster.epoch() == epoch, "the master hears all of them"

        networks.cut(3, (0,))
        cluster.wait_for_states("lost", "serving", "serving", limit_s=LOST_S)
        right(mounts, files)

        networks.heal()
        cluster.wait_for_states(*NODES * ["serving"], limit_s=LOST_S)
        wait_for(
            lambda: all(row["settled"] == row["epoch"] for row in cluster.worker_rows()),
            "every block is in its place",
            60.0,
        )
        assert cluster.epoch() > epoch
        before = proxy.counters().object_bytes
        late = cluster.mount(1, "/data")
        right([late, *mounts], files)
        assert proxy.counters().object_bytes == before, "all of it is somewhere"
        assert where_told(cluster, tmp_path / "cluster/token") == []
        for number, mount in ((0, mounts[0]), (2, mounts[1]), (1, late)):
            cluster.workers[number].umount(mount)


def where_told(cluster: Cluster, token_file: Path) -> list[str]:
    """Where the token can be read, besides its file: files, answers, arguments of processes."""
    token = token_file.read_text().encode()
    files = (path for path in cluster.root.rglob("*") if "/mnt" not in str(path))
    told = [
        str(path)
        for path in files
        if path.is_file() and path != token_file and token in path.read_bytes()
    ]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            told += [str(path)] * (token in path.read_bytes())
    for machine in cluster.workers:
        status = machine.run("status", *machine.mounts, "--json")
        told += [machine.name] * (token.decode() in status)
    return told
