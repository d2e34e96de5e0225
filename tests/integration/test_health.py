"""Five faults, made with real processes: each is named in time by `health`, `doctor`, `status`,
`top` and the API, and the remedy that they print makes it go away. A master that has died answers
no API: the commands name it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body
from tests.integration.test_local_cluster import machine, up
from tests.services.cluster import CACHEFS, Cluster, ClusterFailed, Machine
from tests.services.commands import run_program
from tests.services.faults import expired_credentials
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy
from tests.services.versitygw import versitygw

__all__ = ["machine"]  # a fixture

MIB = 1 << 20
COMMAND_S = 10.0  # of a command while the master is away
NAMED_S = 5.0 + 5.0  # from a fault to its name: 5 s are promised, the rest is for a busy machine
LOST_AFTER_S = 5.0  # of `Cluster.lose_soon`
WELL_S = 15.0


class Person(NamedTuple):
    """Somebody who asks about `where` on a machine. `api`: a command that prints the API's list."""

    environment: dict[str, str]
    where: str
    api: tuple[str, ...] = ()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_program([CACHEFS], words, self.environment, 60.0)

    def problems(self) -> list[dict[str, Any]]:
        """What `cachefs health` says."""
        done = self.run("health", self.where, "--json")
        assert done.stdout, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        assert (done.returncode == 0) == (not found)
        return found

    def wait_for(self, code: str, limit_s: float) -> dict[str, Any]:
        """Asks until `health` names this code and no other; a question that began in time
        counts."""
        found: list[dict[str, Any]] = []

        def named() -> bool:
            found[:] = self.problems()
            return [one["code"] for one in found] == [code]

        wait_until(named, f"health says {code}", limit_s)
        return found[0]

    def wait_until_well(self, limit_s: float = WELL_S) -> None:
        wait_until(lambda: not self.problems(), "nothing is wrong", limit_s)

    def assert_shown(self, code: str, remedy: str) -> str:
        """All surfaces name the code, with a remedy that has these words; returns the line of
        `health`."""
        for words in (["health"], ["status"], ["top"]):
            more = ["-n", "1", "--interval", "0.2s"] if words == ["top"] else []
            said = self.run(*words, self.where, *more).stdout
            (line,) = [line.strip() for line in said.splitlines()[:3] if code in line]
            assert remedy in line, said
        assert re.search(rf"^(problem|note) +{code} .*{remedy}", self.run("doctor").stdout, re.M)
        if self.api:
            done = subprocess.run(self.api, capture_output=True, text=True, check=True, timeout=30)
            assert [one["code"] for one in json.loads(done.stdout)["items"]] == [code]
        return self.run("health", self.where).stdout

    def paste(self, said: str, start: str) -> None:
        """Runs the command line of a message that starts so, by a shell."""
        (line,) = re.findall(rf"{start}[^;\n]*", said)
        environment = {**self.environment, "PATH": f"{CACHEFS.parent}:{os.environ['PATH']}"}
        subprocess.run(line, shell=True, env=environment, check=True, timeout=60)


def of_mount(node: Node, mountpoint: Path) -> Person:
    """Its API is on the socket that `--admin-socket` named."""
    api = ("curl", "-s", "--unix-socket", str(node.root / "admin.sock"))
    return Person(node.environment, str(mountpoint), (*api, "http://node/api/v1/health"))


def mounted_well(node: Node, bucket: Bucket) -> tuple[Path, Person]:
    """A mount of which a file was read, and of which nothing is wrong."""
    mountpoint = node.mount(
        bucket.url, *bucket.options, "--admin-socket", node.root / "admin.sock",
        "--sync-interval", "1s", "--origin-deadline", "3s",
    )  # fmt: skip
    node.allowed_log.append(r"s3://")
    person = of_mount(node, mountpoint)
    assert (mountpoint / "d/a").read_bytes() == b"a" * 100_000
    person.wait_until_well()
    return mountpoint, person


def test_an_origin_that_stopped_is_named(node: Node, tmp_path: Path) -> None:
    with versitygw(tmp_path / "origin") as server:
        bucket = Bucket(server, "data")
        bucket.fill({"d/a": b"a" * 100_000})
        mountpoint, person = mounted_well(node, bucket)
        server.stop()
        found = person.wait_for("ORIGIN_DOWN", NAMED_S)
        assert found["subject"].startswith(bucket.url)
        person.assert_shown("ORIGIN_DOWN", "check")
        assert (mountpoint / "d/a").read_bytes() == b"a" * 100_000, "what is cached is read"
        server.start()
        person.wait_until_well()
        node.umount(mountpoint)


def test_credentials_that_expired_are_named(node: Node, bucket: Bucket, proxy: FaultProxy) -> None:
    bucket.fill({"d/a": b"a" * 100_000, "d/b": b"b" * 100_000})
    mountpoint, person = mounted_well(node, bucket)
    proxy.script(expired_credentials(), times=None)
    person.wait_for("CREDENTIALS_EXPIRED", NAMED_S)
    person.assert_shown("CREDENTIALS_EXPIRED", "renew")
    assert (mountpoint / "d/a").read_bytes() == b"a" * 100_000, "its name is older than a second"
    with pytest.raises(PermissionError):
        (mountpoint / "d/b").read_bytes()
    proxy.clear()
    person.wait_until_well()
    assert (mountpoint / "d/b").read_bytes() == b"b" * 100_000
    node.umount(mountpoint)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill_up(path: Path) -> None:
    """Writes a file until its disk is full."""
    with path.open("wb", buffering=0) as room:
        try:
            while True:
                room.write(bytes(MIB))
        except OSError:
            return


def test_a_full_cache_disk_is_named(node: Node, tmp_path: Path, small_disk: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        (source / f"f{number}").write_bytes(body(number, 4 * MIB))
    for number in range(2000):
        (source / f"new{number}").write_bytes(b"new")
    mountpoint = node.mount(
        f"file://{source}", "--cache-dir", small_disk / "cache", "--cache-size", "40MiB",
        "--admin-socket", node.root / "admin.sock",
    )  # fmt: skip
    node.allowed_log.append(r"space|disk|cache")
    person = of_mount(node, mountpoint)
    (mountpoint / "f0").read_bytes()
    fill_up(small_disk / "other")
    for number in range(8):
        assert (mountpoint / f"f{number}").read_bytes() == body(number, 4 * MIB)
    found = person.wait_for("TIER_FULL", NAMED_S)
    assert "No space left" in found["cause"]
    person.assert_shown("TIER_FULL", "free space on that disk")
    (small_disk / "other").unlink()

    fresh = iter(range(2000))

    def is_well() -> bool:
        """A file that was never read is written to the disk again."""
        assert (mountpoint / f"new{next(fresh)}").read_bytes() == b"new"
        return not person.problems()

    wait_until(is_well, "the cache takes files again", 40.0)
    node.umount(mountpoint)


def listed_by(cluster: Cluster) -> list[str]:
    """The codes that the API of a master says."""
    request = urllib.request.Request(f"{cluster.master.url}/api/v1/health", headers=cluster.headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return [one["code"] for one in json.load(answer)["items"]]


def test_a_lost_worker_and_a_master_that_died_are_named(cluster: Cluster, bucket: Bucket) -> None:
    bucket.fill({"d/a": b"a" * 1000})
    cluster.lose_soon()
    cluster.start(2, size="64MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    cluster.wait_until_settled()
    mountpoint = cluster.mount(0, "/data")
    assert (mountpoint / "d/a").read_bytes() == b"a" * 1000
    node = cluster.workers[0]
    user, operator = (
        Person(node.environment, str(mountpoint)),
        Person(cluster.master.environment, cluster.path("")),
    )
    operator.wait_until_well()
    cluster.workers[1].kill()
    user.wait_for("WORKER_LOST", LOST_AFTER_S + NAMED_S)
    operator.wait_for("WORKER_LOST", NAMED_S)
    assert listed_by(cluster) == ["WORKER_LOST"]
    said = user.assert_shown("WORKER_LOST", "cachefs workers remove")
    assert os.listdir(mountpoint) == ["d"]
    user.paste(said, "cachefs workers remove")
    user.wait_until_well()

    cluster.master.kill()
    user.wait_for("MASTER_AWAY", NAMED_S)
    operator.wait_for("MASTER_AWAY", NAMED_S)
    user.assert_shown("MASTER_AWAY", "cachefs master")
    assert (mountpoint / "d/a").read_bytes() == b"a" * 1000
    check_known(node, mountpoint)
    cluster.master.start()
    user.wait_until_well()


def check_known(node: Machine, mountpoint: Path) -> None:
    """A node whose master is dead answers from what it knows."""
    assert node.run("ls", mountpoint, limit_s=COMMAND_S) == "d/\n"
    assert f"{mountpoint}/d/a\n" in node.run("stat", mountpoint / "d/a", limit_s=COMMAND_S)
    with pytest.raises(ClusterFailed, match=r"the master at \S+ cannot be reached"):
        node.run("stat", mountpoint / "d/never-asked-for", limit_s=COMMAND_S)


def test_the_remedy_of_a_dead_master_of_this_machine_starts_it(machine: Machine) -> None:
    """Of a cluster that `cachefs up` made."""
    processes = {one["name"]: one for one in up(machine, 1)["processes"]}
    person = Person(machine.environment, f"cachefs://{processes['master']['url'][7:]}")
    person.wait_until_well()
    os.kill(processes["master"]["pid"], 9)
    person.wait_for("MASTER_AWAY", NAMED_S)
    for words in (["health"], ["status"], ["doctor"]):
        assert "start it: cachefs up" in person.run(*words).stdout
    person.paste(person.run("health", person.where).stdout, "cachefs up")
    person.wait_until_well()
    machine.run("down")
