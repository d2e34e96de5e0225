"""A master that is stopped by SIGSTOP: connections to it hang instead of being refused. Commands on
a node of its cluster answer soon, from what the node knows or with what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.conftest import Bucket
from tests.services.cluster import Cluster, Machine
from tests.services.commands import run_program
from tests.services.processes import stop, wait_until

ANSWER_S = 20.0  # 6 s on a quiet machine: all commands start at the same time
KNOWN_S = 10.0  # once the node has found its master down; `top` pauses for 2 s
LIMIT_S = 60.0


class Ran(NamedTuple):
    done: subprocess.CompletedProcess[str]
    took_s: float


def run(machine: Machine, arguments: list[str]) -> Ran:
    began_s = time.monotonic()
    done = run_program(machine.program, arguments, machine.environment, LIMIT_S)
    return Ran(done, time.monotonic() - began_s)


def run_all(machine: Machine, commands: dict[str, list[str]]) -> dict[str, Ran]:
    """Runs commands at the same time: none profits from what another one found out before."""
    with ThreadPoolExecutor(len(commands)) as threads:
        ran = {name: threads.submit(run, machine, words) for name, words in commands.items()}
        return {name: one.result() for name, one in ran.items()}


def slow(ran: dict[str, Ran], limit_s: float) -> dict[str, float]:
    return {name: one.took_s for name, one in ran.items() if one.took_s > limit_s}


@pytest.fixture
def mountpoint(cluster: Cluster, bucket: Bucket) -> Iterator[Path]:
    """Of a master that is stopped; what was read and listed is known to the node."""
    bucket.fill({"d/a": b"a" * 1000, "d/b": b"b" * 1000})
    cluster.start(1, size="64MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options, "--sync-interval", "1s")
    cluster.wait_until_settled()
    path = cluster.mount(0, "/data")
    assert (path / "d/a").read_bytes() == b"a" * 1000
    assert os.listdir(path / "d") == ["a", "b"]
    stop(cluster.master.pid)
    yield path
    os.kill(cluster.master.pid, signal.SIGCONT)


def test_commands_answer_beside_a_stopped_master(cluster: Cluster, mountpoint: Path) -> None:
    node, below = cluster.workers[0], str(mountpoint / "d")
    known = {
        "ls": ["ls", below],
        "ls -l": ["ls", "-l", below],
        "stat": ["stat", f"{below}/a"],
        "top": ["top", str(mountpoint), "-n", "1"],
        "status": ["status", str(mountpoint)],
        "status of all": ["status"],
        "health": ["health", str(mountpoint)],
        "health of all": ["health"],
        "doctor": ["doctor"],
    }
    refused = {
        "du": ["du", str(mountpoint)],
        "location": ["location", f"{below}/a"],
        "policy": ["policy", "show", f"{below}/a"],
        "workers": ["workers", "--master", cluster.master.url],
        "load": ["load", str(mountpoint)],
        "sync": ["sync", str(mountpoint)],
        "health of the cluster": ["health", cluster.path("")],
    }
    ran = run_all(node, known | refused)
    print({name: round(one.took_s, 1) for name, one in ran.items()})
    assert slow(ran, ANSWER_S) == {}
    check_known({name: ran[name].done for name in known}, mountpoint)
    for name in refused:
        said = ran[name].done.stdout + ran[name].done.stderr
        assert ran[name].done.returncode, name
        assert "no answer from the master in time" in said or "cannot be reached" in said, name

    wait_until(lambda: "the master does not answer" in run(node, ["health"]).done.stdout, "known")
    ran = run_all(node, known)
    assert slow(ran, KNOWN_S) == {}
    check_known({name: one.done for name, one in ran.items()}, mountpoint)


def check_known(done: dict[str, subprocess.CompletedProcess[str]], mountpoint: Path) -> None:
    assert done["ls"].stdout == "a\nb\n", done["ls"].stderr
    assert [line.split()[-1] for line in done["ls -l"].stdout.splitlines()] == [
        f"{mountpoint}/d/a", f"{mountpoint}/d/b"
    ]  # fmt: skip
    assert f"{mountpoint}/d/a\n" in done["stat"].stdout
    for name in ("top", "status", "status of all", "health", "health of all", "doctor"):
        assert "MASTER_AWAY" in done[name].stdout, f"{name}: {done[name]}"
    assert "MASTER_AWAY" in done["status"].stdout.splitlines()[1], "at its head"
