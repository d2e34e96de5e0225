"""What breaks a cluster: partitions, full and stopped machines, objects that change, operators.
Real processes by the real command line; nobody reads a wrong byte, and every read ends in time.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import errno
import http.client
import os
import secrets
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.model import Origin
from tests.integration.conftest import Bucket
from tests.integration.dataset import body, digest, digests, expected, images
from tests.services.cluster import CACHEFS, Cluster, Machine
from tests.services.files import files_below
from tests.services.networks import Networks
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy
from tests.services.s3_server import S3Server

T = TypeVar("T", bound=m.Message)
MIB = 1 << 20
NODES = 3
READ_S = 30.0  # whatever breaks, a read has ended by then
LOST_S = 40.0  # until a silent worker is given up, on a busy machine


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

    @property
    def program(self) -> list[str | Path]:
        return [*self.enter, CACHEFS]


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
        cluster.lose_soon()
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
        cluster.wait_until_settled(60.0)
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
    files = {*files_below(cluster.root)} - {token_file}
    here = {path for path in files if "/mnt" not in str(path)}
    processes = {Path("/proc", name, "cmdline") for name in os.listdir("/proc") if name.isdigit()}
    told = []
    for path in here | processes:
        with contextlib.suppress(OSError):  # it was there for a moment
            told += [str(path)] * (path.is_file() and token in path.read_bytes())
    for machine in cluster.workers:
        status = machine.run("status", *machine.mounts, "--json")
        told += [machine.name] * (token.decode() in status)
    return told


# ---- stopped and killed workers ------------------------------------------------------------------


def owner_of(cluster: Cluster, path: Path) -> int:
    """The number of the worker that owns the first block of a file."""
    row = cluster.workers[0].json("location", path)[0]
    urls = [machine.url for machine in cluster.workers]
    return urls.index(f"http://{row['address']}")


def read_all(path: Path) -> str:
    return digest(path.read_bytes())


def test_fills_of_a_worker_that_is_killed_are_finished_by_another(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy
) -> None:
    """What it had not brought comes once more, however many wait for it."""
    data = body(5, 16 * MIB)
    serve(cluster, bucket, {"big.bin": data})
    cluster.wait_until_settled()  # the owner is the same to all
    mounts = [cluster.mount(n, "/data") for n in range(NODES)]
    owner = owner_of(cluster, mounts[0] / "big.bin")
    others = [mount for n, mount in enumerate(mounts) if n != owner]
    proxy.rate_bytes_per_s = 5 * MIB
    with concurrent.futures.ThreadPoolExecutor(len(others)) as pool:
        reads = [pool.submit(read_all, mount / "big.bin") for mount in others]
        brought = proxy.wait_until(lambda seen: seen.object_bytes > 4 * MIB).object_bytes
        cluster.workers[owner].kill()
        assert [read.result(READ_S) for read in reads] == [digest(data)] * len(others)
    # The pages that the owner had, those on their way to it, and everything once.
    assert proxy.counters().object_bytes <= len(data) + brought + 8 * MIB
    for n, mount in enumerate(mounts):
        if n != owner:
            cluster.workers[n].umount(mount)


def test_a_worker_that_was_stopped_does_not_fill_by_an_old_epoch(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy
) -> None:
    files = images(30)
    cluster.lose_soon()
    serve(cluster, bucket, files)
    mount = cluster.mount(0, "/data")
    assert sorted(path.name for path in mount.rglob("*.jpg"))
    rows = cluster.workers[0].json("location", mount)
    address = cluster.workers[2].url.removeprefix("http://")
    cold = next(row["path"] for row in rows if row["address"] == address)
    epoch = cluster.epoch()
    stopped = cluster.workers[2]
    stopped.send(signal.SIGSTOP)
    try:
        cluster.wait_for_states("lost", "serving", "serving", limit_s=LOST_S)
        right([mount], files)
        with question(cluster, stopped, cold, epoch + 1) as answer:
            stopped.send(signal.SIGCONT)
            status, knows = answer()
    finally:
        stopped.send(signal.SIGCONT)
    assert status == 409 or knows > epoch, "it knows that it owned nothing meanwhile"
    cluster.wait_for_states(*NODES * ["serving"])
    assert cluster.epoch() > epoch
    before = proxy.counters().object_bytes
    right([mount], files)
    assert proxy.counters().object_bytes == before
    cluster.workers[0].umount(mount)


@contextlib.contextmanager
def question(
    cluster: Cluster, worker: Machine, name: str, epoch: int
) -> Iterator[Callable[[], tuple[int, int]]]:
    """Asks a worker to bring a page. Its answer's status, and the epoch that the worker knew."""
    origin = locate(cluster, name.encode())
    connection = http.client.HTTPConnection(worker.url.removeprefix("http://"), timeout=READ_S)
    try:
        header = base64.b64encode(msgspec.msgpack.encode(origin)).decode()
        path = f"{c.DATA_PATH}/{origin.content.name}?first=0&end=1&epoch={epoch}"
        headers = {c.ORIGIN_HEADER: header, **cluster.headers}
        connection.request("GET", path, headers=headers)

        def answer() -> tuple[int, int]:
            reply = connection.getresponse()
            return reply.status, int(reply.headers[c.EPOCH_HEADER])

        yield answer
    finally:
        connection.close()


def locate(cluster: Cluster, path: bytes) -> Origin:
    greeted = ask(cluster, c.Greeting(), c.Greeted)
    found = ask(cluster, m.Resolve(greeted.namespace, path), m.Found)
    assert found.inode is not None
    place = ask(cluster, c.Locate(greeted.namespace, [found.inode.ino]), c.Located).places[0]
    assert place.origin is not None
    return place.origin


def ask(cluster: Cluster, call: m.Message, kind: type[T]) -> T:
    headers = {"Content-Type": "application/msgpack", **cluster.headers}
    request = urllib.request.Request(cluster.master.url + c.CALL_PATH, c.encode(call), headers)
    with urllib.request.urlopen(request, timeout=READ_S) as reply:
        answer = c.decode_answer(reply.read())
    assert isinstance(answer, kind)
    return answer


# ---- full disks ----------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_a_disk_that_is_full_while_blocks_come(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy
) -> None:
    """It has less room than it was told; what does not fit is read past it."""
    files = {f"part{n:02d}.bin": body(n, MIB) for n in range(40)}
    serve(cluster, bucket, files, workers=2)
    mount = cluster.mount(0, "/data")
    right([mount], files)
    with small_disk(cluster.root / "node2" / "tier", "20m"):
        added = cluster.add_worker(size="256MiB")
        other = added.mount(cluster.path("/data"))
        right([mount, other], files)
        cluster.wait_until_settled(60.0)
        right([mount, other], files)
        added.umount(other)
        added.stop()
    cluster.workers[0].umount(mount)


def test_a_master_with_a_full_disk_serves_what_it_knows(cluster: Cluster, bucket: Bucket) -> None:
    files = images(20)
    bucket.fill(files)
    with small_disk(cluster.root / "master" / "disk", "24m") as disk:
        cluster.master.command += ["--store", f"lmdb:{disk / 'store'}"]
        cluster.start(1, size="64MiB")
        cluster.add_ufs(bucket.url, "/data", *bucket.options, "--sync-interval", "1s")
        mount = cluster.mount(0, "/data")
        names = sorted(path for path in mount.rglob("*.jpg"))
        some = {str(path.relative_to(mount)): files[str(path.relative_to(mount))] for path in names}
        fill(disk)
        assert {name: digest((mount / name).read_bytes()) for name in some} == expected(some)
        bucket.put("train/n00/late.jpg", b"late")
        with contextlib.suppress(OSError):  # it cannot be recorded
            (mount / "train/n00/late.jpg").read_bytes()
        (disk / "balloon").unlink()
        late = mount / "train/n00/late.jpg"
        wait_until(late.exists, "what could not be recorded is found")
        right([mount], {**files, "train/n00/late.jpg": b"late"})
        assert [row["state"] for row in cluster.worker_rows()] == ["serving"]
        cluster.workers[0].umount(mount)
        cluster.workers[0].stop()
        cluster.master.stop()


def fill(disk: Path) -> None:
    """To the last byte."""
    with (disk / "balloon").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


# ---- changes under readers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Cluster]:
    """Three nodes that outlive a test; each test has a directory of its own in their namespace."""
    with Cluster(tmp_path_factory.mktemp("standing"), s3.credentials()) as made:
        made.start(NODES, size="256MiB")
        yield made


class Watcher:
    """Reads one file again and again until it is told to end, and notes what each read gave."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                what = read_all(self.path)
            except OSError as err:
                what = errno.errorcode[err.errno or 0]
            if self.seen[-1:] != [what]:
                self.seen.append(what)


@contextlib.contextmanager
def watched(paths: Iterable[Path]) -> Iterator[list[Watcher]]:
    watchers = [Watcher(path) for path in paths]
    with concurrent.futures.ThreadPoolExecutor(len(watchers)) as pool:
        running = [pool.submit(watcher.run) for watcher in watchers]
        try:
            yield watchers
        finally:
            for watcher in watchers:
                watcher.stopping.set()
    for one in running:
        one.result()


@pytest.mark.parametrize("size", [300_000, 20 * MIB])
def test_an_object_that_changes_is_never_a_mix(
    standing: Cluster, bucket: Bucket, proxy: FaultProxy, size: int
) -> None:
    old, new = body(1, size), body(2, size)
    bucket.put("file.bin", old)
    at = f"/changes{size}"
    standing.add_ufs(bucket.url, at, *bucket.options, "--sync-interval", "1s")
    mounts = [standing.workers[n].mount(standing.path(at), name=at[1:]) for n in range(NODES)]
    proxy.rate_bytes_per_s = 40 * MIB
    with watched(mount / "file.bin" for mount in mounts) as watchers:
        wait_until(lambda: all(one.seen for one in watchers), "everybody reads")
        bucket.put("file.bin", new)
        wait_until(
            lambda: all(one.seen[-1] == digest(new) for one in watchers),
            "everybody has the new bytes",
            READ_S,
        )
    for watcher in watchers:
        seen = [what for what in watcher.seen if what != "ESTALE"]
        assert seen in ([digest(old), digest(new)], [digest(new)]), watcher.seen
    for n, mount in enumerate(mounts):
        standing.workers[n].umount(mount)


def codes_of(machine: Machine, mount: Path) -> list[str]:
    """The problems that `cachefs health` names."""
    return [one["code"] for one in machine.json("health", mount, codes=(0, 1, 2))]


def test_free_and_removal_under_readers(
    standing: Cluster, bucket: Bucket, proxy: FaultProxy
) -> None:
    files = images(12, folders=2) | {"big.bin": body(3, 12 * MIB)}
    bucket.fill(files)
    standing.add_ufs(bucket.url, "/going", *bucket.options)
    mounts = [standing.workers[n].mount(standing.path("/going"), name="going") for n in (0, 1)]
    right(mounts, files)
    name = "train/n00/img_00000.jpg"
    with watched(mount / one for mount in mounts for one in (name, "big.bin")) as watchers:
        wait_until(lambda: all(one.seen for one in watchers), "everybody reads")
        for _ in range(2):
            standing.workers[0].run("free", mounts[0])
        standing.master.run("ufs", "rm", "/going", "--master", standing.master.url)
        wait_until(lambda: all(len(one.seen) > 1 for one in watchers), "everybody hears of it")
    assert "MOUNT_GONE" in codes_of(standing.workers[0], mounts[0])
    known = set(expected(files).values())
    for watcher in watchers:
        first, *rest = watcher.seen
        assert first in known
        assert set(rest) <= {"ENOENT", "ESTALE", "EIO"}, watcher.seen
    standing.add_ufs(bucket.url, "/going", *bucket.options)
    wait_until(lambda: (mounts[0] / name).exists(), "it is there again")
    assert "MOUNT_GONE" not in codes_of(standing.workers[0], mounts[0])
    right(mounts, files)
    for n, mount in enumerate(mounts):
        standing.workers[n].umount(mount)


def test_two_paths_on_one_node_and_a_partial_file_that_is_damaged(
    standing: Cluster, bucket: Bucket, proxy: FaultProxy
) -> None:
    """The peer finds it, the owner fetches it again."""
    data, small = body(4, 12 * MIB), images(8, folders=1)
    bucket.fill({"big/big.bin": data, **small})
    standing.add_ufs(bucket.url, "/two", *bucket.options)
    top = standing.workers[0].mount(standing.path("/two"), name="two")
    owner = standing.workers[owner_of(standing, top / "big/big.bin")]
    big = owner.mount(standing.path("/two/big"), name="big")
    train = owner.mount(standing.path("/two/train"), name="train")
    assert {p.name for p in big.iterdir()} == {"big.bin"}
    assert digests(train) == {k.removeprefix("train/"): v for k, v in expected(small).items()}
    with (big / "big.bin").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 3 * MIB, 0) == data[: 3 * MIB]
    content = locate(standing, b"two/big/big.bin").content.name
    (partial,) = owner.root.glob(f"tier/files/*/{content}")
    with partial.open("r+b") as file:
        file.seek(MIB + 77)
        file.write(b"damaged")
    before = proxy.counters().object_bytes
    reader = standing.workers[(standing.workers.index(owner) + 1) % NODES]
    other = reader.mount(standing.path("/two/big"), name="big")
    assert read_all(other / "big.bin") == digest(data)
    assert reader.json("status", other)["peers"]["wrong_pages"] >= 1
    assert proxy.counters().object_bytes - before < 2 * len(data)
    assert read_all(big / "big.bin") == digest(data)
    for machine, mount in (
        (reader, other),
        (owner, big),
        (owner, train),
        (standing.workers[0], top),
    ):
        machine.umount(mount)
