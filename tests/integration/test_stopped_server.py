"""A server of mounts that is stopped by SIGSTOP and whose queue of connections is full: commands
name it, and the remedy that they print works when it is pasted."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachefs.client.sockets import connect_long
from cachefs.launcher.hung_server import unanswered
from tests.integration.conftest import Node
from tests.services.processes import is_running, stop, wait_until


def server_of(node: Node, mountpoint: Path) -> int:
    (pid,) = [one["pid"] for one in node.processes(mountpoint) if one["role"] == "server"]
    return int(pid)


@contextlib.contextmanager
def full_queue(path: Path) -> Iterator[None]:
    """Connects until no more connections are taken."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.enter_context(sock)
                sock.setblocking(False)
                connect_long(sock, str(path))
        yield


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    (path / "a").write_bytes(b"a")
    return path


def pasted(said: str, name: str) -> None:
    """Runs the command line `name ...` that a message ends with, by a shell."""
    (line,) = set(re.findall(rf"{name} [^;\n]*", said))
    subprocess.run(line, shell=True, check=True)


def test_a_mount_beside_a_stopped_server_says_so(node: Node, source: Path) -> None:
    mountpoint = node.mount(f"file://{source}", "--heartbeat-timeout", "60s")
    server, other = server_of(node, mountpoint), node.mountpoint("other")
    (path,) = node.state.glob("sources/*/server.sock")
    stop(server)
    with full_queue(path):
        said = node.fails("mount", f"file://{source}", other)
        assert f"the server (pid {server}) is stopped, and does not answer" in said
        commands = [["status"], ["health", str(mountpoint)], ["doctor"]]
        with ThreadPoolExecutor(len(commands)) as threads:
            for done in threads.map(lambda words: node.run(*words), commands):
                assert f"the server (pid {server}) is stopped" in done.stdout
                assert "MOUNT_DEAD" in done.stdout
    pasted(said, "kill")
    assert node.mount(f"file://{source}", name="other") == other
    assert server_of(node, other) == server
    node.umount(other)
    node.umount(mountpoint)


def test_a_server_that_hangs_is_ended_by_the_remedy(node: Node, source: Path) -> None:
    """Its mount starts the next one."""
    mountpoint = node.mount(f"file://{source}")
    server = server_of(node, mountpoint)
    node.allowed_log.append("connection to the server")
    pasted(unanswered(server, "").one_line(), "kill")
    wait_until(lambda: not is_running(server), "the server has ended")
    other = node.mount(f"file://{source}", name="other")
    assert server_of(node, other) != server
    assert (mountpoint / "a").read_bytes() == b"a"
    node.umount(other)
    node.umount(mountpoint)
