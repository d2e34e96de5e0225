"""Runs `cachefs` for tests, in forks of a process that has imported it: `cachefs_commands.py`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

CACHEFS: Final = Path(sys.executable).parent / "cachefs"
_SERVER: Final = Path(__file__).with_name("cachefs_commands.py")
_PART_BYTES: Final = 1 << 16
_lock = threading.Lock()


@functools.cache
def _server() -> socket.socket:
    """The one server of this process, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-I", _SERVER, str(theirs.fileno())],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # an interrupt of the tests is no interrupt of commands
        )
    atexit.register(_end, server, ours)
    return ours


def _end(server: subprocess.Popen[bytes], requests: socket.socket) -> None:
    requests.close()
    server.wait()


def run_program(
    program: Sequence[str | Path],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
) -> subprocess.CompletedProcess[str]:
    """`PROGRAM ARGUMENTS`, in a fork where it is `cachefs` alone. Raises TimeoutExpired."""
    if [*program] == [CACHEFS]:
        return run_cachefs(arguments, environment, limit_s)
    return subprocess.run(
        [*program, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def run_cachefs(
    arguments: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    """`cachefs ARGUMENTS`: its exit code, standard output and standard error, as `subprocess.run`
    gives them. Raises TimeoutExpired, after SIGKILL."""
    command = [str(CACHEFS), *arguments]
    request = {"argv": command, "env": dict(environment), "cwd": os.getcwd()}
    answer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipes = [os.pipe(), os.pipe()]
    given = [*(write for _, write in pipes), theirs.fileno()]
    with answer, theirs:
        try:
            with _lock:
                server = _server()
            socket.send_fds(server, [json.dumps(request).encode()], given)
        finally:
            for _, write in pipes:
                os.close(write)
        theirs.close()
        ends = [read for read, _ in pipes]
        try:
            code, parts = _followed(command, answer, ends, limit_s)
        finally:
            for read in ends:
                os.close(read)
    texts = [bytes(parts[read]).decode() for read in ends]
    return subprocess.CompletedProcess(command, code, *texts)


def _followed(
    command: list[str], answer: socket.socket, ends: list[int], limit_s: float
) -> tuple[int, dict[int, bytearray]]:
    """The exit code, and what came from each end until it was closed."""
    deadline = time.monotonic() + limit_s
    pid = status = 0
    parts = {read: bytearray() for read in ends}
    poll = select.poll()
    waiting = {*ends, answer.fileno()}
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting:
        left_s = deadline - time.monotonic()
        ready = poll.poll(max(0.0, left_s) * 1000)
        if not ready:
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(command, limit_s)
        for fd, _ in ready:
            if fd in parts:
                part = os.read(fd, _PART_BYTES)
                parts[fd] += part
                is_over = not part
            elif pid:
                status, is_over = int(answer.recv(64)), True
            else:
                pid, is_over = int(answer.recv(64)), False
            if is_over:
                poll.unregister(fd)
                waiting.remove(fd)
    return os.waitstatus_to_exitcode(status), parts
