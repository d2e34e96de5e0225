"""Starts servers and FUSE clients as separate processes, and finds those that already run.

A launcher looks for a server, and starts it, under the launch locks of its source and of its cache
directory (always in that order), so that two concurrent mounts share one server. The server
inherits the locks and holds them until it answers: if its starter is killed before that, the next
starter waits for this server. Children run in a new session with a clean set of descriptors. They
read their document from standard input, so that no process title shows it, and answer with one
`Started` line on standard output.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import selectors
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cachefs.client.blocking import BlockingClient
from cachefs.core.errors import (
    AccessDenied,
    CacheFSError,
    DeadlineExceeded,
    InUse,
    NoSpace,
    Unreachable,
    lacks_descriptors,
)
from cachefs.core.messages import error_of
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec, ServerSpec, Started, SupervisorSpec
from cachefs.core.units import format_size
from cachefs.launcher import hung_server, state
from cachefs.launcher.directories import check_own
from cachefs.launcher.process_watch import ProcessId as ProcessId
from cachefs.launcher.process_watch import Watch as Watch
from cachefs.launcher.process_watch import is_stopped
from cachefs.launcher.reserve import Reserve
from cachefs.launcher.state import Pointer, StateHome, read_pointer
from cachefs.launcher.stdin_document import standard_input

SERVER_MODULE: Final = "cachefs.launcher.embedded"
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CLIENT_MODULE: Final = "cachefs.fuse.client"
SUPERVISOR_MODULE: Final = "cachefs.fuse.supervisor"
DEFAULT_CACHE_BYTES: Final = 20 << 30
DEFAULT_CACHE_SHARE: Final = 0.8  # of free space plus the bytes in the cache
LAUNCH_LOCK_WAIT_S: Final = 120.0  # another mount may be starting the server under it
SETTLE_WAIT_S: Final = 15.0  # for a server that is starting or ending
SERVER_START_S: Final = 60.0  # beyond the origin's deadline
CLIENT_START_S: Final = 60.0
END_WAIT_S: Final = 5.0
_POLL_S: Final = 0.05
_MAX_LINE_BYTES: Final = 1 << 20


class Server(NamedTuple):
    """A server that answers. `started`: by this call. `warning`: one line for users, or ""."""

    socket: str
    started: bool
    warning: str


def module_command(module: str) -> tuple[str, ...]:
    """Returns the command line of a child: this interpreter, isolated from the current folder."""
    return (sys.executable, "-I", "-m", module)


def ensure_server(
    spec: ServerSpec, *, command: Sequence[str] = (), hang_limit_s: float = 0.0
) -> Server:
    """Returns the running server of the source or of the cache directory, or a new one.

    In `spec`, an empty `cache_dir` means the source's directory, a `cache_size_bytes` of 0 the
    default size. Kills and replaces a server that does not answer for `hang_limit_s` (0: never).
    Raises the typed error of a failed start, AccessDenied and NoSpace for the cache directory,
    Unreachable when a server hangs; ends a process that it started before it raises.
    """
    check_own(spec.home, trust=spec.trust_directories)
    home = StateHome(spec.home)
    full = Reserve(spec.home).give_up_if_short()
    source_dir = home.source_dir(spec.source)
    own_cache_dir = source_dir / state.CACHE_NAME
    cache_dir = usable_cache_dir(spec.cache_dir or own_cache_dir, trust=spec.trust_directories)
    with launch_lock(source_dir) as source_lock, launch_lock(cache_dir) as cache_lock:
        for directory in (source_dir, cache_dir):
            pointer = running(directory, hang_limit_s)
            if pointer is not None:
                other = cache_dir != own_cache_dir and read_pointer(cache_dir) != pointer
                return Server(pointer.socket, False, _OTHER_CACHE if other else "")
        size_bytes = cache_size(cache_dir, spec.cache_size_bytes)
        locks = (source_lock, cache_lock)
        spec = msgspec.structs.replace(
            spec, cache_dir=str(cache_dir), cache_size_bytes=size_bytes, launch_fds=locks
        )
        log = home.log_dir(spec.source) / "server.err"
        timeout_s = spec.origin_deadline_s + SERVER_START_S
        started = start_child(
            command or module_command(SERVER_MODULE),
            msgspec.msgpack.encode(spec),
            None if spec.log_to_stderr else log,
            timeout_s,
            reap=True,  # a client that restarts a server may outlive it
            pass_fds=locks,
        )
    warning = "; ".join(line for line in (full, started.warning) if line)
    return Server(str(source_dir / state.SOCKET_NAME), True, warning)


_OTHER_CACHE: Final = (
    "the running server of this source has another cache directory; --cache-dir is ignored"
)


def start_client(spec: ClientSpec, foreground: bool, *, command: Sequence[str] = ()) -> Started:
    """Starts the FUSE client, with the transport `kernel` under a supervisor, and waits until the
    file system answers.

    In the foreground it logs to our standard error, and `wait_child` returns its exit code. Raises
    the typed error of a failed start; the process has ended then.
    """
    spec = msgspec.structs.replace(spec, log_to_stderr=foreground)
    supervised = spec.transport == "kernel"
    module = SUPERVISOR_MODULE if supervised else CLIENT_MODULE
    document = msgspec.msgpack.encode(SupervisorSpec(spec) if supervised else spec)
    name = f"client-{state.mount_id(spec.mountpoint)}.err"
    log = None if foreground else StateHome(spec.home).log_dir(spec.source) / name
    # A running server checks a source that is new to it at the origin first.
    server = spec.server or spec.node
    wait_s = CLIENT_START_S + spec.worker_wait_s
    wait_s += server.origin_deadline_s if server is not None else 0.0
    return start_child(command or module_command(module), document, log, wait_s, reap=False)


def client_log(home: StateHome, source: UfsSpec, mountpoint: str) -> str:
    """Returns the log path of a mount's background client."""
    log_dir = home.log_dir(source)
    return str(log_dir / f"client-{state.mount_id(mountpoint)}.log")


def cache_size(directory: Path, asked_bytes: int) -> int:
    """Returns the cache size: `asked_bytes`, or the default if that is 0.

    Raises NoSpace when the file system has less room than `asked_bytes`.
    """
    vfs = os.statvfs(directory)
    free_bytes = vfs.f_bavail * vfs.f_frsize
    if asked_bytes and asked_bytes <= free_bytes:
        return asked_bytes
    if not asked_bytes and free_bytes * DEFAULT_CACHE_SHARE >= DEFAULT_CACHE_BYTES:
        return DEFAULT_CACHE_BYTES
    room_bytes = free_bytes + held_bytes(directory)  # a directory walk, so only if needed
    if asked_bytes > room_bytes:
        raise NoSpace(
            f"the cache needs {format_size(asked_bytes)}, {format_size(room_bytes)} are free",
            remedy="give a smaller --cache-size, or another --cache-dir",
            path=str(directory),
        )
    return asked_bytes or min(DEFAULT_CACHE_BYTES, int(room_bytes * DEFAULT_CACHE_SHARE))


def held_bytes(directory: Path) -> int:
    """Returns the bytes allocated below a directory, hard links counted once."""
    seen: set[int] = set()
    total_bytes = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                info = os.lstat(os.path.join(folder, name))
                if info.st_nlink == 1 or info.st_ino not in seen:
                    total_bytes += info.st_blocks * 512
                if info.st_nlink > 1:
                    seen.add(info.st_ino)
    return total_bytes


def usable_cache_dir(path: str | Path, *, trust: bool = False) -> Path:
    """Returns the real path of a cache directory; creates it (0700) if missing. Raises AccessDenied
    if this user cannot use it, and as `private_dir`. `trust`: see `check_own`."""
    real = Path(os.path.realpath(path))
    if not real.exists():
        check_own(path, trust=trust)
        return state.private_dir(real)
    info = real.stat()
    if not stat.S_ISDIR(info.st_mode):
        return state.private_dir(real)  # raises the error for a non-directory
    if info.st_uid != os.geteuid():
        raise _not_ours(real, f"the cache directory belongs to user {info.st_uid}")
    check_own(path, trust=trust)
    if not os.access(real, os.R_OK | os.W_OK | os.X_OK) or _is_read_only(real):
        raise _not_ours(real, "the cache directory cannot be written")
    return real


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _not_ours(path: Path, cause: str) -> AccessDenied:
    return AccessDenied(cause, remedy="give a directory of your own as --cache-dir", path=str(path))


@contextlib.contextmanager
def launch_lock(directory: Path) -> Iterator[int]:
    """Takes the launch lock of a directory, waiting up to `LAUNCH_LOCK_WAIT_S`; yields its
    descriptor. A child that inherits it also holds the lock. The unlock on success releases it for
    both: a server of an earlier version never closes the descriptor. Raises InUse, AccessDenied."""
    path = directory / state.LOCK_NAME
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as err:
        raise _not_ours(directory, f"cannot be locked: {err.strerror}") from err
    try:
        try:
            state.lock_within(fd, LAUNCH_LOCK_WAIT_S, _POLL_S)
        except BlockingIOError as err:
            raise InUse(
                "another mount has been starting here for too long",
                remedy="end it, or try again",
                path=str(directory),
            ) from err
        yield fd
        # After a failure a child that may still be starting keeps the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def running(directory: Path, hang_limit_s: float = 0.0) -> Pointer | None:
    """Returns the server that a directory points to, once it answers; None if there is none.

    A process that lives but does not answer is starting or ending, unless it is stopped. Kills a
    server that does not answer for `hang_limit_s` (0: never). Raises Unreachable for a server that
    does not answer in time and was not killed.
    """
    deadline = time.monotonic() + (hang_limit_s or SETTLE_WAIT_S)
    while (pointer := read_pointer(directory)) is not None:
        if answers(pointer):
            return pointer
        if not pointer.process.lives():
            return None
        is_late = time.monotonic() > deadline
        if is_late and hang_limit_s and hung_server.end_listener(pointer.socket):
            continue
        if is_late or (is_stopped(pointer.pid) and not hang_limit_s):
            raise hung_server.unanswered(pointer.pid, str(directory))
        time.sleep(_POLL_S)
    return None


def answers(pointer: Pointer) -> bool:
    """Returns whether the server answers. Raises ProtocolError for an incompatible version, and
    OSError if this process may open no more files: the server may be well."""
    try:
        with BlockingClient.connect(pointer.socket):
            return True
    except (Unreachable, DeadlineExceeded, OSError) as err:
        if lacks_descriptors(err):
            raise
        return False


def start_child(
    command: Sequence[str],
    document: bytes,
    log: Path | None,
    timeout_s: float,
    *,
    reap: bool,
    pass_fds: Sequence[int] = (),
) -> Started:
    """Starts a child and waits for its `Started`. Any exception, Ctrl-C included, ends the child.

    With `reap` a thread of this process reaps it; otherwise `wait_child` may.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with _stop_signals_later():
            process = _spawn(command, document, log, pass_fds)
        started = _read_started(process, log, timeout_s)
        if started.failure is not None:
            raise error_of(started.failure)
    except BaseException:
        if process is not None:
            _end(process)
        raise
    finally:
        if process is not None and process.stdout is not None:
            process.stdout.close()
    if reap:
        threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    else:
        process.returncode = 0  # keeps Popen from warning about a running child
    return started


@contextlib.contextmanager
def _stop_signals_later() -> Iterator[None]:
    """Handles stop signals that arrive in the block at its end: the exception of a handler would
    lose a child that was just started. Handlers run in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {n: kept for n in STOP_SIGNALS if callable(kept := signal.getsignal(n))}
    for number in handlers:
        signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for one in arrived:
            signal.raise_signal(one)


def _spawn(
    command: Sequence[str], document: bytes, log: Path | None, pass_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log_fd = os.open(log, flags, 0o600) if log is not None else None
    try:
        with standard_input(document) as stdin:
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=log_fd,
                cwd="/",
                umask=0o077,
                pass_fds=pass_fds,
                start_new_session=True,
            )
    finally:
        if log_fd is not None:
            os.close(log_fd)


def _read_started(process: subprocess.Popen[bytes], log: Path | None, timeout_s: float) -> Started:
    line = _read_line(process, time.monotonic() + timeout_s)
    try:
        return msgspec.json.decode(line, type=Started)
    except msgspec.DecodeError as err:
        _end(process)
        kind = Unreachable if process.returncode < 0 else CacheFSError  # killed: try again
        raise kind(
            f"a started process ended before it was ready (status {process.returncode})"
            + _last_line(log),
            remedy=f"see {log}" if log is not None else "see the messages above",
        ) from err


def _read_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Returns the child's output up to a line end or its end. Raises DeadlineExceeded."""
    assert process.stdout is not None
    fd, line = process.stdout.fileno(), b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
        rest_s = deadline - time.monotonic()
        if rest_s <= 0 or not poll.poll(rest_s * 1000):
            raise DeadlineExceeded("a started process was not ready in time", remedy="see its log")
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            break
        line += chunk
    return line


def _last_line(log: Path | None) -> str:
    """Returns the last line that a dead child wrote, as `: text`."""
    lines = log.read_text(errors="replace").strip().splitlines() if log is not None else []
    return f": {lines[-1].strip()[:200]}" if lines else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a child with SIGTERM, or its session with SIGKILL after `END_WAIT_S`. Reaps it."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start_supervisor(spec: SupervisorSpec, fds: Sequence[int]) -> int:
    """Starts the next supervisor of a mount that the caller serves; returns its pid. It inherits
    `fds` and standard error. Stop signals stay pending until it handles them. Raises OSError."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        with standard_input(msgspec.msgpack.encode(spec)) as stdin:
            process = subprocess.Popen(
                module_command(SUPERVISOR_MODULE),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                cwd="/",
                umask=0o077,
                pass_fds=fds,
                start_new_session=True,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    return process.pid


@contextlib.contextmanager
def stop_signals(selector: selectors.BaseSelector, on_stop: Callable[[], None]) -> Iterator[None]:
    """Has a loop around a selector, which calls the `data` of what is ready, call `on_stop` for
    stop signals, also for those that were pending at its start."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)

    def asked() -> None:
        ours.recv(64)
        on_stop()

    with ours, theirs:
        selector.register(ours, selectors.EVENT_READ, asked)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: None)  # only the wake-up descriptor below is used
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # see `start_supervisor`
        yield
        signal.set_wakeup_fd(-1)


def wait_child(pid: int) -> int:
    """Waits for a foreground child. Returns its exit code (128 + signal if a signal ended it)."""
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
