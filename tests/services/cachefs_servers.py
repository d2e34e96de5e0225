"""Servers and clients as forks of processes that have imported their code already, one process for
each module: `python -I cachefs_servers.py MODULE FD [CLIENTS_FD]`. A start of a server takes 0.3 to
0.5 s of CPU time, a fork of one 0.02 s, and the tests start thousands.

Commands of the tests (`cachefs_commands.py`) call this in place of `subprocess.Popen`. A fork has
what the started process has: command line and environment (also as others read them in /proc),
standard descriptors, inherited descriptors at the same numbers and no others, working directory,
file mode mask, and a session. It is no child of the command. Processes in the foreground, those of
another interpreter, and what servers and clients start later are started as always, except that a
forked supervisor forks the clients.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.services import forks

if __name__ == "__main__":
    sys.path.pop()

EXECUTE: Final = "TESTS_EXECUTE_SERVERS"  # in a command's environment: it starts programs
SUPERVISOR: Final = "cachefs.fuse.supervisor"
CLIENT: Final = "cachefs.fuse.client"
ORIGINS: Final = ("botocore.httpsession", "connectors.file.connector", "connectors.s3.connector")
MODULES: Final[dict[str, tuple[str, ...]]] = {  # and what they import late
    "cachefs.launcher.embedded": ORIGINS,
    "cachefs.launcher.masterd": ORIGINS,
    "cachefs.launcher.node": ORIGINS,
    SUPERVISOR: ("cachefs.fuse.supervisor.__main__",),
    CLIENT: (),
}
_ENVIRONMENT_BYTES: Final = 32 << 10
_ROOM: Final = "TESTS_ROOM"


class Servers:
    """The sockets to the processes that fork; each is started by its first request."""

    def __init__(self, commands: forks.Forks) -> None:
        self._sockets: dict[str, socket.socket] = {}
        pairs = {module: _pair() for module in MODULES}
        self._sockets.update({module: ours for module, (ours, _) in pairs.items()})
        for module, (_, theirs) in pairs.items():
            commands.once(theirs, self._starter(module))

    def _starter(self, module: str) -> Callable[[socket.socket], None]:
        clients = self._sockets[CLIENT] if module == SUPERVISOR else None
        return lambda theirs: _start(module, theirs, clients)

    def replace_starts(self) -> None:
        """Has the launcher of this process fork servers and clients."""
        from cachefs.launcher import processes

        vars(processes).update(subprocess=_module(self._sockets, foreground=False))


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _start(module: str, requests: socket.socket, clients: socket.socket | None) -> None:
    """Starts the process that forks a module; it ends when no other end of its socket is left."""
    fds = [sock.fileno() for sock in (requests, clients) if sock is not None]
    process = subprocess.Popen(
        [sys.executable, "-I", __file__, module, *map(str, fds)],
        env={**os.environ, _ROOM: "x" * _ENVIRONMENT_BYTES},
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        start_new_session=True,  # an interrupt of the tests is none of it
    )
    process.returncode = 0  # keeps Popen from warning about a running child


@functools.cache
def _sockets_here(module: str) -> socket.socket:
    """The socket to this process's own process that forks a module."""
    clients = _sockets_here(CLIENT) if module == SUPERVISOR else None
    ours, theirs = _pair()
    with theirs:
        _start(module, theirs, clients)
    return ours


def fork_started(module: str, document: int) -> ForkedProcess:
    """Forks a module for the tests themselves. `document`: the standard input."""
    return ForkedProcess(
        _sockets_here(module),
        [sys.executable, "-I", "-m", module],
        stdin=document,
        stdout=subprocess.PIPE,
        cwd=os.getcwd(),
        pass_fds=(),
        start_new_session=True,
    )


@contextlib.contextmanager
def forked_server() -> Iterator[None]:
    """Has the launcher in the tests' own process fork the server of a mount."""
    from cachefs.launcher import processes

    sockets = {processes.SERVER_MODULE: _sockets_here(processes.SERVER_MODULE)}
    vars(processes).update(subprocess=_module(sockets, foreground=False))
    try:
        yield
    finally:
        vars(processes).update(subprocess=subprocess)


def _module(sockets: dict[str, socket.socket], *, foreground: bool) -> Any:
    """Returns a module like `subprocess`, whose Popen forks what it can. `foreground`: also a
    process that inherits standard error."""

    def start(command: Sequence[str], **how: Any) -> Any:
        module = command[-1]
        requests = sockets.get(module)
        is_ours = [*command[:-1]] == [sys.executable, "-I", "-m"]
        if requests is None or not is_ours or (how.get("stderr") is None and not foreground):
            return subprocess.Popen(command, **how)
        return ForkedProcess(requests, command, **how)

    copy = types.ModuleType("subprocess")
    vars(copy).update(vars(subprocess), Popen=start)
    return copy


class ForkedProcess:
    """What the starters use of `subprocess.Popen`."""

    def __init__(
        self,
        requests: socket.socket,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int | None = None,
        cwd: str,
        umask: int = -1,
        pass_fds: Sequence[int],
        start_new_session: bool,
    ) -> None:
        assert start_new_session
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = None
        self._answer, theirs = _pair()
        output = os.open(os.devnull, os.O_RDWR)
        if stdout == subprocess.PIPE:
            os.close(output)
            read, output = os.pipe()
            self.stdout = os.fdopen(read, "rb")
        request = {
            "command": [*command],
            "parent": os.getpid(),
            "environment": dict(os.environ),
            "cwd": cwd,
            "umask": umask if umask >= 0 else _own_umask(),
            "kept": [0, 1, 2, *pass_fds],
        }
        fds = [stdin, output, 2 if stderr is None else stderr, *pass_fds, theirs.fileno()]
        try:
            socket.send_fds(requests, [json.dumps(request).encode()], fds)
        finally:
            os.close(output)
            theirs.close()
        self.pid = int(self._answer.recv(64))

    def poll(self) -> int | None:
        """Returns the exit code, None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            self._answer.settimeout(timeout)
            try:
                status = int(self._answer.recv(64))
            except (TimeoutError, BlockingIOError) as err:
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0) from err
            self.returncode = os.waitstatus_to_exitcode(status)
            self._answer.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _own_umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


# ---- in the process that forks -------------------------------------------------------------------


def become(request: dict[str, Any], fds: list[int], kept: Sequence[int] = ()) -> None:
    """Makes this fork what a process is that has just been started. Keeps also `kept`."""
    targets: list[int] = request["kept"]
    high = max(*targets, *kept) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, high) for fd in fds]
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in moved and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                continue  # the descriptor of the listing
    for fd, target in zip(moved, targets, strict=True):
        os.dup2(fd, target)
        os.close(fd)
    os.setsid()
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.getppid = lambda: request["parent"]  # the starter, as a client asks
    os.environ.clear()
    os.environ.update(request["environment"])
    show(request["command"], request["environment"])


def show(command: Sequence[str], environment: dict[str, str]) -> None:
    """Has others read this command line and this environment in /proc. `os.environ` has been
    cleared: nothing else refers to the memory of the first environment."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    places = [int(field) for field in fields[45:49]]
    texts = ([*command], [f"{name}={value}" for name, value in environment.items()])
    for start, end, words in zip(places[::2], places[1::2], texts, strict=True):
        text = "".join(f"{word}\0" for word in words).encode()
        assert len(text) <= end - start, "no room"
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


def run(module: str, requests: int, clients: int | None = None) -> None:
    """Serves the requests; runs the module in each fork, as `python -m`."""
    forks.import_all([module, *MODULES[module]])
    for name in (module, f"{module}.__main__"):
        if hasattr(sys.modules.get(name), "main"):
            del sys.modules[name]  # runs anew
    become(*forks.Forks(socket.socket(fileno=requests)).serve(), [clients] if clients else [])
    if clients is not None:
        from cachefs.fuse.supervisor import process

        sockets = {CLIENT: socket.socket(fileno=clients)}
        vars(process).update(subprocess=_module(sockets, foreground=True))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run(sys.argv[1], *map(int, sys.argv[2:]))
