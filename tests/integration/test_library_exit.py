"""Programs that end while they use the library: soon, and without a word that they did not print.

Every warning is an error there, as are those of descriptors that a finaliser had to close."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body
from tests.services.proxy import FaultProxy, hang

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
SOON_S = 15.0  # from the line that a program prints last to its end, on a busy machine
MIB = 1 << 20


@pytest.fixture
def mounted(node: Node, bucket: Bucket, proxy: FaultProxy) -> Path:
    """`cold` is in the bucket; the bytes do not arrive."""
    bucket.fill({"a/0": b"0" * 3000, "a/1": b"1" * 3000, "big": body(1, 20 * MIB), "cold": b"c"})
    path = node.mount(bucket.url, *bucket.options, "--sync-interval", "1h")
    assert (path / "a" / "0").read_bytes() == b"0" * 3000
    assert (path / "a" / "1").read_bytes() == b"1" * 3000
    return path


@contextmanager
def silent(proxy: FaultProxy) -> Iterator[threading.Event]:
    """The origin answers no request until the event is set."""
    gate = threading.Event()
    proxy.script(hang(gate), times=None)
    try:
        yield gate
    finally:
        gate.set()


@contextmanager
def program(name: str, node: Node, mounted: Path) -> Iterator[subprocess.Popen[str]]:
    strict = [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning"]
    with subprocess.Popen(
        [*strict, "-m", "tests.integration.exit_programs", name, str(mounted), str(node.state)],
        cwd=ROOT,
        env={**os.environ, **node.environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    said = process.stdout.readline().strip()
    assert said == word, process.stderr.read()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, float]:
    """Returns the exit status, what was printed, and after how long."""
    began_s = time.monotonic()
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out + err, time.monotonic() - began_s


@pytest.mark.parametrize(
    "name",
    [
        "all_closed", "all_left_open", "an_error_in_a_batch", "a_fork_that_exits",
        "daemon_threads_that_read",
    ],
)  # fmt: skip
def test_a_program_ends_without_a_word(name: str, node: Node, mounted: Path) -> None:
    """[S-library-exit]"""
    with program(name, node, mounted) as process:
        wait_for(process, "ready")
        status, words, took_s = end_of(process)
    assert (status, words) == (0, "")
    assert took_s < SOON_S


@pytest.mark.parametrize(
    "name",
    [
        "daemon_threads_in_calls", "children_by_fork", "children_by_spawn",
        "children_by_forkserver",
    ],
)  # fmt: skip
def test_a_program_does_not_wait_for_calls_that_nobody_waits_for(
    name: str, node: Node, mounted: Path, proxy: FaultProxy
) -> None:
    node.allowed_log.append("WARNING")
    with silent(proxy), program(name, node, mounted) as process:
        wait_for(process, "ready")
        status, words, took_s = end_of(process)
    assert (status, words) == (0, "")
    assert took_s < SOON_S


def test_a_pool_ends_with_its_calls(node: Node, mounted: Path, proxy: FaultProxy) -> None:
    with silent(proxy) as gate, program("a_pool_in_calls", node, mounted) as process:
        wait_for(process, "ready")
        gate.set()
        status, words, took_s = end_of(process)
    assert (status, words) == (0, "")
    assert took_s < SOON_S


def interrupted(name: str, node: Node, mounted: Path, proxy: FaultProxy) -> tuple[int, str, float]:
    """Sends SIGINT to a program whose request waits for the origin; returns as `end_of`."""
    before = proxy.counters().requests.total()
    with silent(proxy), program(name, node, mounted) as process:
        wait_for(process, "ready")
        proxy.wait_until(lambda counters: counters.requests.total() > before, LIMIT_S)
        os.kill(process.pid, signal.SIGINT)
        return end_of(process)


def test_a_program_that_is_interrupted_shows_its_call(
    node: Node, mounted: Path, proxy: FaultProxy
) -> None:
    status, words, took_s = interrupted("interrupted", node, mounted, proxy)
    assert status == -signal.SIGINT
    assert words.endswith("KeyboardInterrupt\n"), words
    assert len(re.findall("Traceback", words)) == 1, words
    assert took_s < SOON_S


def test_a_program_reads_on_after_an_interruption(
    node: Node, mounted: Path, proxy: FaultProxy
) -> None:
    status, words, took_s = interrupted("interrupted_and_read_on", node, mounted, proxy)
    assert (status, words) == (0, "")
    assert took_s < SOON_S


def test_a_server_that_hangs_does_not_keep_a_program(node: Node, mounted: Path) -> None:
    node.allowed_log.append("WARNING")
    pid = next(one["pid"] for one in node.processes(mounted) if one["role"] == "server")
    with program("a_stopped_server", node, mounted) as process:
        wait_for(process, "stop")
        os.kill(pid, signal.SIGSTOP)
        try:
            status, words, took_s = end_of_input(process)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert (status, words) == (0, "ready\n")
    assert took_s < SOON_S


def end_of_input(process: subprocess.Popen[str]) -> tuple[int, str, float]:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
    return end_of(process)
