"""The library reads a cluster without a mount: by the worker of its machine, or by one that it
starts on a machine without one."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cachefs.launcher.state import StateHome, read_pointer
from cachefs.library.library import Library
from cachefs.library.tree import Tree
from cachefs.trainers.manifest import Manifest
from tests.integration.conftest import Bucket
from tests.integration.dataset import body, digest, images
from tests.integration.test_library import end_servers, run_reader
from tests.services.cluster import Cluster, Machine
from tests.services.processes import is_running, wait_until
from tests.services.proxy import FaultProxy

AT_ONCE_S = 10.0  # a wait for a master that returns takes 30 s


@pytest.fixture
def files() -> dict[str, bytes]:
    return {**images(80, size=3_000), "big.bin": body(9, 20 << 20)}


@pytest.fixture
def asked(cluster: Cluster, bucket: Bucket, files: dict[str, bytes]) -> dict[str, Any]:
    bucket.fill(files)
    cluster.start(2, size="256MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    cluster.wait_until_settled()
    return {"url": cluster.path("/data"), "settings": {}, "names": sorted(files)}


def check(seen: dict[str, Any], files: dict[str, bytes]) -> None:
    assert seen["batch"] == [digest(files[name]) for name in sorted(files)]
    assert seen["found"] == sorted(files)
    assert seen["left"] == 0


def test_by_the_worker_of_the_machine(
    cluster: Cluster, proxy: FaultProxy, asked: dict[str, Any], files: dict[str, bytes]
) -> None:
    check(run_reader(asked, cluster.workers[0].environment), files)
    assert len(cluster.worker_rows()) == 2, "no other worker was started"
    assert proxy.counters().object_bytes == sum(map(len, files.values()))
    check(run_reader(asked, cluster.workers[1].environment), files)
    assert proxy.counters().object_bytes == sum(map(len, files.values()))


def test_on_a_machine_without_a_worker(
    cluster: Cluster, trainer: Machine, asked: dict[str, Any], files: dict[str, bytes]
) -> None:
    asked["settings"] = {"cache_size": "256MiB"}
    try:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(run_reader, asked, trainer.environment)
            wait_until(
                lambda: (
                    sorted(row["weight"] > 0 for row in cluster.worker_rows())
                    == [False, True, True]
                ),
                "the reader has a worker that owns no blocks",
            )
            check(reading.result(), files)
    finally:
        end_servers(trainer.root / ".cache" / "cachefs")
    wait_until(lambda: len(cluster.worker_rows()) == 2, "it has left")


def test_a_master_that_does_not_answer(
    cluster: Cluster, trainer: Machine, asked: dict[str, Any], files: dict[str, bytes]
) -> None:
    """[S-library-server] A program's first call fails at once, and names host and port. A program
    that has been connected waits for the master, also if its worker has to be started again."""
    state = trainer.root / ".cache" / "cachefs"
    token = cluster.security.token_file
    settings = {"home": str(state), "token_file": token, "cache_size": "256MiB"}
    joined, new = Library(), Library()
    tree = Tree(asked["url"], settings, lambda: joined)
    first, second = asked["names"][:2]
    try:
        assert tree.read(first) == files[first]
        cluster.master.kill()
        (pid,) = [
            pointer.pid
            for directory in StateHome(str(state)).server_dirs()
            if (pointer := read_pointer(directory)) is not None
        ]
        os.kill(pid, signal.SIGKILL)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(tree.read, second)
            wait_until(lambda: not is_running(pid), "the worker has ended")
            since_s = time.monotonic()
            with pytest.raises(OSError, match="the master does not answer") as caught:
                Tree(asked["url"], {**settings, "cache_size": "1GiB"}, lambda: new).read(first)
            assert time.monotonic() - since_s < AT_ONCE_S
            assert caught.value.filename == asked["url"]
            assert f"http://{asked['url'].split('/')[2]}" in str(caught.value)
            assert "cachefs master" in str(caught.value)
            assert not reading.done()
            cluster.master.start()
            assert reading.result() == files[second]
    finally:
        joined.close()
        new.close()
        end_servers(state)


def test_a_manifest_has_the_files_of_now(cluster: Cluster, bucket: Bucket) -> None:
    """[S-manifest] Also where events come from the master."""
    bucket.fill({f"{folder}/{n:02}": b"x" for folder in ("cat", "dog") for n in range(30)})
    cluster.start(1, size="256MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options, "--sync-interval", "0s")
    mnt = cluster.mount(0, "/data")
    made = Manifest(mnt, home=str(cluster.workers[0].root / ".cache" / "cachefs"))
    assert any(made.namespace)
    for count in range(1, 4):
        bucket.put(f"dog/new-{count}", b"new")
        assert made.refresh()
        assert len(made) == 60 + count
    assert not made.refresh()
