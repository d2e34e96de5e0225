"""Workers of a cluster on this machine: which of them a mount uses, and when it starts its own."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachefs.client.blocking import BlockingClient
from cachefs.core import errors
from cachefs.core import messages as m
from cachefs.core.model import UfsSpec
from cachefs.core.specs import WorkerSpec
from cachefs.core.tiers import parse_tier
from cachefs.launcher import cluster, state
from cachefs.launcher.processes import Server, Watch
from cachefs.launcher.state import MountRecord, StateHome, read_pointer

SCRIPT = str(Path(__file__).with_name("fake_cachefs_node.py"))
COMMAND = (sys.executable, SCRIPT)
MASTER = "http://127.0.0.1:19998"


class Machine:
    """One state home; its workers are stopped at the end of the test."""

    def __init__(self, root: Path) -> None:
        self.home = StateHome(state.private_dir(root / "home"))

    def spec(self, name: str, stays: bool) -> WorkerSpec:
        return WorkerSpec(str(self.home.path), MASTER, name, ("ssd:/x:1GiB",), stays=stays)

    def start(self, name: str, *, stays: bool = True) -> int:
        spec = self.spec(name, stays)
        return cluster.start_worker(spec, background=True, reap=True, command=COMMAND).pid

    def ensure(self, used: str = "") -> Server:
        return cluster.ensure_node(self.spec(cluster.MOUNTS_NODE, False), used, command=COMMAND)

    def socket(self, name: str) -> str:
        return str(cluster.node_dir(self.spec(name, True)) / "server.sock")

    def kill(self, name: str) -> None:
        pointer = read_pointer(Path(self.socket(name)).parent)
        assert pointer is not None
        with Watch(pointer.process) as watch:
            watch.signal(signal.SIGKILL)
            assert watch.ended(10)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(cluster, "RETURN_S", 0.2)
    made = Machine(tmp_path)
    yield made
    for directory in made.home.node_dirs("127.0.0.1:19998"):
        made.kill(directory.name)


def test_a_worker_that_is_there_is_used(machine: Machine) -> None:
    machine.start("a")
    assert machine.ensure() == Server(machine.socket("a"), False, "")


def test_else_one_is_started_once(machine: Machine) -> None:
    first = machine.ensure()
    assert first == Server(machine.socket(cluster.MOUNTS_NODE), True, "")
    assert machine.ensure() == Server(first.socket, False, "")


def test_workers_that_stay_go_first_and_the_one_in_use_before_all(machine: Machine) -> None:
    machine.start(cluster.MOUNTS_NODE, stays=False)
    machine.start("z")
    machine.start("zz")
    assert machine.ensure().socket == machine.socket("z")
    used = machine.socket(cluster.MOUNTS_NODE)
    assert machine.ensure(used).socket == used


def test_mounts_are_spread_over_the_workers(machine: Machine) -> None:
    machine.start("a")
    machine.start("b")
    source = UfsSpec("cachefs://127.0.0.1:19998/x")
    machine.home.write_mount(MountRecord("/mnt/1", source, os.getpid(), machine.socket("a")))
    assert machine.ensure().socket == machine.socket("b")
    machine.home.write_mount(MountRecord("/mnt/2", source, os.getpid(), machine.socket("b")))
    machine.home.write_mount(MountRecord("/mnt/3", source, os.getpid(), machine.socket("b")))
    assert machine.ensure().socket == machine.socket("a")


def test_one_that_died_is_replaced_by_another(machine: Machine) -> None:
    machine.start("a")
    machine.start("b")
    machine.kill("a")
    assert machine.ensure(machine.socket("a")).socket == machine.socket("b")
    machine.kill("b")
    assert machine.ensure(machine.socket("a")).started


def test_one_that_came_back_is_used_again(machine: Machine) -> None:
    machine.start("a")
    machine.start("b")
    machine.kill("b")
    machine.start("b")
    assert machine.ensure(machine.socket("b")).socket == machine.socket("b")


def test_one_that_ended_and_is_started_again_is_waited_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pointer went with it."""
    monkeypatch.setattr(cluster, "RETURN_S", 20.0)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(machine.ensure, machine.socket("a"))
        machine.start("a")
        assert found.result(30) == Server(machine.socket("a"), False, "")


def test_one_directory_for_all_paths_of_a_cluster(machine: Machine) -> None:
    home = machine.home
    directory = home.source_dir(UfsSpec("cachefs://127.0.0.1:19998/a"))
    assert directory == home.source_dir(UfsSpec("cachefs://127.0.0.1:19998/b/c"))
    assert directory == home.cluster_dir("127.0.0.1:19998")
    assert home.source_dir(UfsSpec("cachefs://127.0.0.1:1/a")) != directory


def test_directories_become_tiers(tmp_path: Path) -> None:
    tier = parse_tier(cluster.tier_of(tmp_path / "t", 64 << 20))
    assert tier.path == os.path.realpath(tmp_path / "t")
    assert tier.limit_bytes == 64 << 20
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        assert parse_tier(cluster.tier_of(memory, 1 << 20)).kind == "mem"
    with pytest.raises(errors.NoSpace):
        cluster.tier_of(tmp_path / "t", 1 << 60)


def test_the_fake_answers(machine: Machine) -> None:
    machine.start("a")
    with BlockingClient.connect(machine.socket("a")) as client:
        assert isinstance(client.call(m.Status()), m.StatusReply)
