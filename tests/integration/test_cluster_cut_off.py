"""Workers that run and do not reach the origin: by their network, by their credentials, and all of
them at once. Real processes by the real command line."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.conftest import Bucket
from tests.integration.dataset import body, digest
from tests.integration.test_cluster_faults import NetCluster
from tests.services.cluster import Cluster, Machine
from tests.services.networks import Networks
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy, refuse, status

NODES = 3
NOTICED_S = 12.0  # a connection of the owner's is given up after 5 s; that costs the first read
SOON_S = 4.8  # later ones are told at once, on a busy machine: without those 5 s
DEADLINE_S = 6.0  # `--origin-deadline`, where it is waited for
SLACK_S = 5.0  # 2 s are promised; the rest is for a busy machine, and no second deadline


def some_files(count: int, name: str) -> dict[str, bytes]:
    return {f"{name}/{n:03d}": body(n, 40_000 + n) for n in range(count)}


class Firewalled(NamedTuple):
    """A cluster of nodes each of which can be cut off from the origin, which `proxy` passes on."""

    networks: Networks
    proxy: FaultProxy
    cluster: NetCluster
    mounts: list[Path]


@contextlib.contextmanager
def firewalled(
    folder: Path,
    bucket: Bucket,
    files: dict[str, bytes],
    *,
    nodes: int = NODES,
    deadline_s: float = DEADLINE_S,
) -> Iterator[Firewalled]:
    """Starts a settled cluster in network namespaces, with `files` mounted on each node; unmounts
    them at the end of a block that raises nothing."""
    bucket.fill(files)
    with (
        Networks(NODES + 1) as networks,
        FaultProxy(bucket.endpoint_url, host=networks.here) as proxy,
        NetCluster(folder / "cluster", bucket.server.credentials(), networks) as cluster,
    ):
        cluster.start(nodes, "--origin-deadline", f"{deadline_s:g}s", size="256MiB")
        cluster.add_ufs(bucket.url, "/data", "--endpoint-url", proxy.endpoint_url)
        mounts = [cluster.mount(n, "/data") for n in range(nodes)]
        cluster.wait_until_settled()
        yield Firewalled(networks, proxy, cluster, mounts)
        for number, mount in enumerate(mounts):
            cluster.workers[number].umount(mount)


def owned_by(cluster: Cluster, folder: Path) -> list[list[str]]:
    """The names of the files in a folder of node 0's mount, by the number of their owner."""
    assert sorted(folder.iterdir())
    urls = [machine.url.removeprefix("http://") for machine in cluster.workers]
    found: list[list[str]] = [[] for _ in urls]
    for row in cluster.workers[0].json("location", folder):
        found[urls.index(row["address"])].append(f"{folder.name}/{Path(row['path']).name}")
    return found


def timed_reads(paths: list[Path]) -> tuple[list[str], list[float]]:
    """Reads one file after the other: their digests, and how long each read took."""
    found, took_s = [], []
    for path in paths:
        began = time.monotonic()
        found.append(digest(path.read_bytes()))
        took_s.append(time.monotonic() - began)
    return found, took_s


def timed_read(path: Path) -> tuple[int, float]:
    """Reads a file: the errno, or 0, and how long it took."""
    began, code = time.monotonic(), 0
    try:
        path.read_bytes()
    except OSError as err:
        code = err.errno or 0
    return code, time.monotonic() - began


def status_of(cluster: Cluster, number: int) -> dict[str, Any]:
    """Asked of the node itself: who is cut off from here has no metrics page for us."""
    machine = cluster.workers[number]
    found: dict[str, Any] = machine.json("status", machine.mounts[0])
    return found


def test_readers_go_past_an_owner_that_is_cut_off_from_the_origin(
    tmp_path: Path, bucket: Bucket
) -> None:
    """By a firewall that drops what it sends: nobody waits for the deadline, each byte is read
    once, and the owner is asked again when it reaches the origin."""
    files = some_files(90, "before") | some_files(150, "after")
    with firewalled(tmp_path, bucket, files, deadline_s=16.0) as (networks, proxy, cluster, mounts):
        owned = owned_by(cluster, mounts[0] / "before")
        later = owned_by(cluster, mounts[0] / "after")
        cut, *readers = sorted(range(NODES), key=lambda n: -len(owned[n]))
        networks.cut_from_here(cut + 1)

        for number in readers:
            found, took_s = timed_reads([mounts[number] / name for name in owned[cut]])
            print(f"node{number}: longest {max(took_s):.2f} s, then {sorted(took_s)[-2]:.2f} s")
            assert found == [digest(files[name]) for name in owned[cut]]
            assert max(took_s) < NOTICED_S
            assert sorted(took_s)[-2] < SOON_S, "it is noticed once"
        asked = proxy.counters().requests_by_key
        assert {asked[name] for name in owned[cut]} == {1}, "who stands in reads for all"
        told = [status_of(cluster, number)["peers"]["cut_off"] for number in range(NODES)]
        assert told[cut] == 0
        assert all(told[number] > 0 for number in readers)

        def is_named() -> bool:
            problems = cluster.workers[readers[0]].json("health", mounts[readers[0]], codes=(0, 2))
            return [one["code"] for one in problems] == ["ORIGIN_DOWN"]

        wait_until(is_named, "health names the worker", 30.0)
        networks.heal()
        brought = status_of(cluster, cut)["serving"]["brought"]
        unread = iter([mounts[readers[0]] / name for name in later[cut]])

        def is_back() -> bool:
            next(unread).read_bytes()
            return bool(status_of(cluster, cut)["serving"]["brought"] > brought)

        wait_until(is_back, "the owner fills again")


def test_the_readers_of_an_owner_that_is_cut_off_use_the_next_in_rank(
    tmp_path: Path, bucket: Bucket
) -> None:
    """Nobody has cached what they read, and nobody else reads: the next in rank reads the origin
    once for them. The owner reads it itself when it can again."""
    files = some_files(60, "before") | some_files(150, "after")
    with firewalled(tmp_path, bucket, files, deadline_s=16.0) as (networks, proxy, cluster, mounts):
        owned = owned_by(cluster, mounts[0] / "before")
        later = owned_by(cluster, mounts[0] / "after")
        cut = max(range(NODES), key=lambda n: len(owned[n]))
        assert sorted((mounts[cut] / "before").iterdir())
        assert sorted((mounts[cut] / "after").iterdir())
        networks.cut_from_here(cut + 1)
        proxy.reset()

        found, took_s = timed_reads([mounts[cut] / name for name in owned[cut]])
        print(f"longest {max(took_s):.2f} s, then {sorted(took_s)[-2]:.2f} s")
        assert found == [digest(files[name]) for name in owned[cut]]
        assert max(took_s) < NOTICED_S
        assert sorted(took_s)[-2] < SOON_S, "it is noticed once"
        asked = proxy.counters().requests_by_key
        assert {asked[name] for name in owned[cut]} == {1}, "who stands in reads for them"
        brought = [status_of(cluster, n)["serving"]["brought"] for n in range(NODES)]
        assert sum(brought) >= len(owned[cut])
        assert brought[cut] == 0

        networks.heal()
        unread = iter([mounts[cut] / name for name in later[cut]])

        def is_back() -> bool:
            served = [status_of(cluster, n)["serving"]["brought"] for n in range(NODES)]
            next(unread).read_bytes()
            return served == [status_of(cluster, n)["serving"]["brought"] for n in range(NODES)]

        wait_until(is_back, "the owner reads the origin itself")


def test_two_that_are_cut_off_do_not_wait_for_each_other(tmp_path: Path, bucket: Bucket) -> None:
    """The origin is read by the one that is left, for the others too, or by nobody: then each read
    ends at its deadline, and not later."""
    files = some_files(40, "f")
    with firewalled(tmp_path, bucket, files, nodes=2) as (networks, _, _, mounts):
        assert [len(list(mount.rglob("*"))) for mount in mounts] == 2 * [41]
        for number in (1, 2):
            networks.cut_from_here(number)

        for part in (sorted(files)[:20], sorted(files)[20:]):
            paths = [mount / name for mount in mounts for name in part]
            with concurrent.futures.ThreadPoolExecutor(len(paths)) as pool:
                found = list(pool.map(timed_read, paths))
            waits_s = [waited_s for _, waited_s in found]
            print(f"waits {min(waits_s):.2f} to {max(waits_s):.2f} s")
            assert {code for code, _ in found} == {errno.EIO}
            assert max(waits_s) < DEADLINE_S + SLACK_S
        networks.heal()
        wait_until(lambda: timed_read(mounts[0] / "f/000")[0] == 0, "it is read again", 20.0)


def test_a_load_brings_what_its_owner_cannot(tmp_path: Path, bucket: Bucket) -> None:
    """The next in rank has it then, and readers are told so by the owner."""
    files = some_files(30, "f")
    with firewalled(tmp_path, bucket, files) as (networks, proxy, cluster, mounts):
        owned = owned_by(cluster, mounts[0] / "f")
        cut, reader, _ = sorted(range(NODES), key=lambda n: -len(owned[n]))
        networks.cut_from_here(cut + 1)
        loaded = cluster.workers[reader].run("load", "--wait", mounts[reader] / "f")
        print(loaded)
        assert "30 of 30 files" in loaded
        before = proxy.counters().object_bytes
        found, _ = timed_reads([mounts[reader] / name for name in sorted(files)])
        assert found == [digest(files[name]) for name in sorted(files)]
        found, _ = timed_reads([mounts[cut] / name for name in owned[cut]])
        assert found == [digest(files[name]) for name in owned[cut]], "the owner has them, too"
        assert proxy.counters().object_bytes == before, "it was loaded"


class OneWithOtherKeys(Cluster):
    """The first worker has other credentials than the others."""

    keys: dict[str, str]

    def _machine(self, name: str) -> Machine:
        machine = super()._machine(name)
        if name == "node0":
            machine.environment |= self.keys
        return machine


@pytest.mark.parametrize("key", ["AKIDUNKNOWN", ""])
def test_readers_go_past_an_owner_without_valid_credentials(
    tmp_path: Path, bucket: Bucket, proxy: FaultProxy, key: str
) -> None:
    files = some_files(40, "f")
    bucket.fill(files)
    with OneWithOtherKeys(tmp_path / "cluster", bucket.server.credentials()) as cluster:
        cluster.keys = {"AWS_ACCESS_KEY_ID": key}
        cluster.start(NODES, size="256MiB")
        cluster.add_ufs(bucket.url, "/data", *bucket.options)
        mounts = [cluster.mount(n, "/data") for n in range(NODES)]
        cluster.wait_until_settled()
        of_first = owned_by(cluster, mounts[0] / "f")[0]
        for number in (1, 2):
            found, took_s = timed_reads([mounts[number] / name for name in of_first])
            assert found == [digest(files[name]) for name in of_first]
            assert max(took_s) < SOON_S
        refused = proxy.counters().statuses["403"]
        assert refused < len(of_first), "the owner tries it now and then"
        assert status_of(cluster, 1)["peers"]["cut_off"] > 0
        for number, mount in enumerate(mounts):
            cluster.workers[number].umount(mount)


@pytest.mark.parametrize("key", ["AKIDUNKNOWN", ""])
def test_the_readers_of_an_owner_without_valid_credentials_use_the_next_in_rank(
    tmp_path: Path, bucket: Bucket, proxy: FaultProxy, key: str
) -> None:
    """From the first read on. So do its loads."""
    files = some_files(20, "f") | some_files(20, "later")
    bucket.fill(files)
    with OneWithOtherKeys(tmp_path / "cluster", bucket.server.credentials()) as cluster:
        cluster.keys = {"AWS_ACCESS_KEY_ID": key}
        cluster.start(NODES, size="256MiB")
        cluster.add_ufs(bucket.url, "/data", *bucket.options)
        mount = cluster.mount(0, "/data")
        cluster.wait_until_settled()
        own = owned_by(cluster, mount / "f")[0]
        found, took_s = timed_reads([mount / name for name in own])
        assert found == [digest(files[name]) for name in own]
        assert max(took_s) < SOON_S
        assert "20 of 20 files" in cluster.workers[0].run("load", "--wait", mount / "later")
        cluster.workers[0].umount(mount)


def test_a_file_that_nobody_may_read_is_asked_for_by_its_owner_alone(
    tmp_path: Path, bucket: Bucket, proxy: FaultProxy
) -> None:
    files = some_files(30, "f")
    bucket.fill(files)
    with Cluster(tmp_path / "cluster", bucket.server.credentials()) as cluster:
        cluster.start(NODES, size="256MiB")
        cluster.add_ufs(bucket.url, "/data", *bucket.options)
        mounts = [cluster.mount(n, "/data") for n in range(NODES)]
        cluster.wait_until_settled()
        owned = owned_by(cluster, mounts[0] / "f")
        secret, *known = [(n, name) for n, names in enumerate(owned) for name in names[:2]]
        for _, name in known:
            assert (mounts[2] / name).read_bytes() == files[name], "all of them may read others"
        proxy.script(status(403, code="AccessDenied"), key=secret[1], times=None)
        proxy.reset()
        reader = (secret[0] + 1) % NODES
        with pytest.raises(PermissionError):
            (mounts[reader] / secret[1]).read_bytes()
        asked = proxy.counters().requests_by_key[secret[1]]
        assert asked <= 2, "among others, then by a thread that knows what the reply means"
        for number, mount in enumerate(mounts):
            cluster.workers[number].umount(mount)


def test_an_origin_that_is_away_for_all_costs_one_deadline(
    tmp_path: Path, bucket: Bucket, proxy: FaultProxy
) -> None:
    """Each read waits for its deadline once, whoever was asked before; and the origin gets few
    requests meanwhile."""
    files = some_files(12, "a") | some_files(12, "b")
    bucket.fill(files)
    with Cluster(tmp_path / "cluster", bucket.server.credentials()) as cluster:
        cluster.start(NODES, "--origin-deadline", f"{DEADLINE_S:g}s", size="256MiB")
        cluster.add_ufs(bucket.url, "/data", *bucket.options)
        mounts = [cluster.mount(n, "/data") for n in range(NODES)]
        cluster.wait_until_settled()
        assert [len(list(mount.rglob("*"))) for mount in mounts] == NODES * [26]
        proxy.script(refuse(), key=r"^[ab]/", times=None)

        for folder in "ab":
            proxy.reset()
            began = time.monotonic()
            paths = [mount / name for mount in mounts for name in files if name[0] == folder]
            with concurrent.futures.ThreadPoolExecutor(len(paths)) as pool:
                found = list(pool.map(timed_read, paths))
            took_s = time.monotonic() - began
            asked = sum(n for key, n in proxy.counters().requests_by_key.items())
            waits_s = [waited_s for _, waited_s in found]
            print(
                f"{folder}: waits {min(waits_s):.2f} to {max(waits_s):.2f} s,"
                f" {asked} requests in {took_s:.1f} s"
            )
            assert {code for code, _ in found} == {errno.EIO}
            assert max(waits_s) < DEADLINE_S + SLACK_S
        proxy.clear()
        assert timed_read(mounts[0] / "a/000")[0] == 0
        for number, mount in enumerate(mounts):
            cluster.workers[number].umount(mount)
