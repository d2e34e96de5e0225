"""`cachefs csi` as a process: its flags, its log, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.csi_node import LIMIT_S, MASTER, CsiNode
from tests.kube.driver_process import ROOT, driver_command
from tests.services.environment import environment_of
from tests.services.processes import credentials, tcp_sockets

END_S = 10.0  # 1.8 s, while others want the two CPUs


@pytest.fixture
def node() -> Iterator[CsiNode]:
    with tempfile.TemporaryDirectory(prefix="csi") as directory:
        found = CsiNode(Path(directory))
        try:
            yield found
        finally:
            found.end()


def start(node: CsiNode, log: Path, *flags: str) -> subprocess.Popen[bytes]:
    command = driver_command(
        *(node.kubelet.directory, node.holder_socket),
        *("--master", MASTER, "--metrics", f"unix:{node.page}"),
        *("--log-format", "json", "--linger", "1s", *flags),
    )
    with open(log, "ab") as errors:
        environment = environment_of(node.directory / "user")
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, cwd=ROOT, env=environment
        )


def test_sigterm_ends_the_driver_and_leaves_its_mounts(node: CsiNode, tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [start(node, log)]
    try:
        info = node.kubelet.register()
        plugin = node.kubelet.directory / "plugins" / "csi.cachefs.io"
        assert info.endpoint == str(plugin / "csi.sock")
        target = node.kubelet.publish("pod-a", {"path": "/imagenet"})
        before = node.mounts()
        assert before == [node.shared()[0], str(target)]
        assert not tcp_sockets(processes[0].pid)
        assert not credentials(processes[0].pid)
        began_s = time.monotonic()
        processes[0].send_signal(signal.SIGTERM)
        assert processes[0].wait(LIMIT_S) == 0
        assert time.monotonic() - began_s < END_S
        assert node.mounts() == before
        assert not os.path.exists(info.endpoint)
        processes.append(start(node, log))
        node.kubelet.register()
        assert node.kubelet.publish("pod-a", {"path": "/imagenet"}) == target
        assert node.mounts() == before
        node.kubelet.unpublish("pod-a")
        node.wait_until(lambda: not node.mounts() and not node.keys())
    finally:
        for process in processes:
            process.terminate()  # it removes its sockets
            process.wait(LIMIT_S)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"ts", "level", "logger", "message", "fields"} == set(lines[0])
    assert any(line["message"].startswith("mounted cachefs://") for line in lines)
    assert {line["level"] for line in lines} == {"info"}


def test_a_bad_flag_is_one_line(node: CsiNode, tmp_path: Path) -> None:
    process = start(node, tmp_path / "log", "--linger", "soon")
    assert process.wait(LIMIT_S) == 1
    assert (tmp_path / "log").read_text().count("\n") == 1
