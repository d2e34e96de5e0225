"""Commands in forks, and the servers and clients that they fork, are as the programs are."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Node
from tests.services.cachefs_servers import EXECUTE
from tests.services.cluster import Cluster
from tests.services.commands import CACHEFS, run_cachefs
from tests.services.processes import is_running, wait_until

LIMIT_S = 60.0
COMMANDS = {
    "a result": ["config", "--source"],
    "a failure": ["umount", "/nowhere"],
    "a usage error": ["mount", "--no-such-flag"],
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CACHEFS_CACHE_SIZE": "77MiB"}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_fork_says_what_the_program_says(
    arguments: list[str], environment: dict[str, str]
) -> None:
    program = subprocess.run(
        [CACHEFS, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    forked = run_cachefs(arguments, environment, LIMIT_S)
    assert program.stdout or program.stderr
    assert (forked.stdout, forked.stderr) == (program.stdout, program.stderr)
    assert forked.returncode == program.returncode


def test_forks_side_by_side_have_their_own_environments(environment: dict[str, str]) -> None:
    sizes = [f"{n} MiB" for n in range(70, 78)]

    def config(size: str) -> str:
        given = {**environment, "CACHEFS_CACHE_SIZE": size.replace(" ", "")}
        return run_cachefs(["config"], given, LIMIT_S).stdout

    with ThreadPoolExecutor(len(sizes)) as pool:
        for size, said in zip(sizes, pool.map(config, sizes), strict=True):
            assert size in said


def test_a_command_that_takes_too_long_is_an_error_and_the_next_one_runs(
    environment: dict[str, str],
) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_cachefs(["version"], environment, 0.0)
    assert run_cachefs(["version"], environment, LIMIT_S).returncode == 0


# ---- servers and clients ------------------------------------------------------------------------


def seen(pid: int) -> dict[str, Any]:
    """Returns what the kernel and others see of a process."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    kinds = ("Umask", "SigIgn", "Uid", "NoNewPrivs", "CapEff")
    words = {
        name: [*filter(None, (process / name).read_bytes().split(b"\0"))]
        for name in ("cmdline", "environ")
    }
    return {
        **{kind: status[kind] for kind in kinds},
        "cmdline": words["cmdline"],
        "environ": {word for word in words["environ"] if not word.startswith(EXECUTE.encode())},
        "limits": (process / "limits").read_text(),
        "cwd": os.readlink(process / "cwd"),
        "standard": [without_numbers(os.readlink(process / "fd" / str(fd))) for fd in range(3)],
        "leads": os.getsid(pid) == pid,
    }


def without_numbers(text: str) -> str:
    return re.sub("[0-9]+", "N", text)


def forked(pid: int) -> bool:
    """Returns whether the process is a fork: a process of the tests is its parent."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return b"cachefs_servers.py" in Path(f"/proc/{parent}/cmdline").read_bytes()


@pytest.mark.parametrize("transport", ["kernel", "pyfuse3"])
def test_forks_of_a_mount_are_as_its_programs(node: Node, tmp_path: Path, transport: str) -> None:
    (tmp_path / "source").mkdir()
    found = {}
    for executes in ("", "1"):
        node.environment.pop(EXECUTE, None)
        if executes:
            node.environment[EXECUTE] = executes
        mounted = node.mount(f"file://{tmp_path}/source", "--transport", transport)
        pids = {process["role"]: process["pid"] for process in node.processes(mounted)}
        assert {forked(pid) for pid in pids.values()} == {not executes}
        found[executes] = {role: seen(pid) for role, pid in pids.items()}
        node.umount(mounted)
    assert found[""] == found["1"]


def test_forks_of_a_cluster_are_as_its_programs(cluster: Cluster) -> None:
    found = {}
    for executes in (False, True):
        with Cluster(cluster.root / str(int(executes)), {}) as made:
            if executes:
                made.master.environment[EXECUTE] = "1"
            made.master.start()
            assert forked(made.master.pid) is not executes
            found[executes] = {**seen(made.master.pid), "environ": ()}
    assert found[False] == found[True]


def test_a_forked_client_that_was_killed_is_replaced_by_its_supervisor(
    node: Node, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"x")
    mounted = node.mount(f"file://{tmp_path}/source", "--transport", "kernel")
    node.allowed_log.append("client [0-9]+ has ended unexpectedly")
    client = client_of(node, mounted)
    os.kill(client, signal.SIGKILL)
    assert (mounted / "file").read_bytes() == b"x"
    wait_until(lambda: client_of(node, mounted) not in (0, client), "another client serves")
    assert forked(client_of(node, mounted))
    wait_until(lambda: not is_running(client), "the killed client ends")
    node.umount(mounted)


def client_of(node: Node, mounted: Path) -> int:
    """Returns the pid of the one client that status names, 0 for another number of them."""
    pids = [row["pid"] for row in node.processes(mounted) if row["role"] == "client"]
    return pids[0] if len(pids) == 1 else 0
