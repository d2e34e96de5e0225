"""A real mount whose /dev/fuse the test holds, served by a process that it may kill and replace.

The test is the supervisor: it mounts, answers INIT and keeps the takeover table. Whatever goes
wrong, nothing hangs for longer than `limit_s`: the connection is aborted then, so that whoever
waits in the kernel gets an error. A server (master and worker) is started for the mount alone,
or shared: mounts with the `home` of another one use its server, which ends with that.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from cachefs.client.blocking import BlockingClient
from cachefs.client.sockets import connect_socket
from cachefs.core import messages as m
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ServerSpec
from cachefs.fuse import mounting
from cachefs.fuse.kernel.negotiation import Negotiated, negotiate
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.launcher.processes import ProcessId, Watch, ensure_server
from tests.services.abort_late import abort
from tests.services.kernel_process import Handed

LIMIT_S: Final = 60.0
ANSWER_S: Final = 20.0
_READ_ONLY: Final = 1 | 2 | 4  # with nosuid, nodev
_DETACH: Final = 2
_ROOT: Final = Path(__file__).parents[2]
_libc = ctypes.CDLL(None, use_errno=True)


class Process:
    """One that serves."""

    def __init__(self, handed: dict[str, Any], log: Path) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(ANSWER_S)
        with theirs, open(log, "ab") as errors:
            spec = Handed(control_fd=theirs.fileno(), **handed)
            fds = (spec.device_fd, spec.table_fd, spec.control_fd)
            command = [sys.executable, "-m", "tests.services.kernel_process"]
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stderr=errors,
                pass_fds=fds,
                cwd=_ROOT,
            )
        assert self.popen.stdin is not None
        with self.popen.stdin:
            self.popen.stdin.write(msgspec.msgpack.encode(spec))

    def wait_ready(self) -> None:
        assert self.control.recv(64) == b"ready", "it ended before it was ready, see its log"

    def ask(self, command: bytes) -> bytes:
        self.control.send(command)
        return self.control.recv(1 << 16)

    def end(self, *, kill: bool = True) -> None:
        """By SIGKILL, or told to retire. Idempotent."""
        if kill:
            self.popen.send_signal(signal.SIGKILL)
        self.control.close()
        self.popen.wait(ANSWER_S)


class KernelMount:
    """See the module. Use as a context manager; `root` must be an empty directory of the test's."""

    def __init__(
        self,
        source: Path,
        root: Path,
        *,
        sync_interval_s: float = 60.0,
        why_not: str = "",
        home: Path | None = None,
        cache_size_bytes: int = 1 << 30,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.path = root / "mnt"
        self.source = UfsSpec(f"file://{source}")
        self.home = home or root / "home"
        self.log = root / "process.log"
        for directory in (self.path, self.home):
            directory.mkdir(exist_ok=True)
        self._sync_interval_s = sync_interval_s
        self._cache_size_bytes = cache_size_bytes
        self._why_not = why_not
        self._limit_s = limit_s
        self._owns_server = home is None

    def __enter__(self) -> KernelMount:
        spec = ServerSpec(
            home=str(self.home), source=self.source, cache_dir=str(self.home / "cache"),
            cache_size_bytes=self._cache_size_bytes, sync_interval_s=self._sync_interval_s,
            admission="always",
        )  # fmt: skip
        self.server = ensure_server(spec).socket
        self.client = BlockingClient.connect(self.server)
        self._keeper = BlockingClient(connect_socket(self.server))
        self._keeper.call(m.Hello(role="fuse", pid=os.getpid()))  # the server outlives processes
        attached = self.client.call(m.Attach(self.source, self._sync_interval_s))
        assert isinstance(attached, m.Attached)
        self.namespace = attached.namespace
        self.fd, self.negotiated = self._mount()
        self.table = TakeoverTable.create()
        self.device = mounting.device_at(str(self.path))
        self._watchdog = subprocess.Popen(
            [sys.executable, "-m", "tests.services.abort_late", self.device, str(self._limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
        )
        self.process = self._start(resend=False)
        self.process.wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        hung, _ = self._watchdog.communicate(timeout=ANSWER_S)
        _libc.umount2(os.fsencode(self.path), _DETACH)
        try:
            if not mounting.has_ended(self.fd):  # else its device number may be another mount's
                self.abort()
            self.process.end()
        finally:
            os.close(self.fd)
            self.table.close()
            self._keeper.close()
            self.client.close()
        if self._owns_server:
            self._wait_server_ends()
        assert not hung, f"it hung: {self.log.read_text()}"

    def _wait_server_ends(self) -> None:
        with Watch(ProcessId(self.client.welcome.pid)) as watch:
            assert watch.ended(ANSWER_S), "the server does not end after its last mount"

    def _mount(self) -> tuple[int, Negotiated]:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        where = os.fsencode(self.path)
        if _libc.mount(b"test", where, b"fuse.test", _READ_ONLY, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")
        assert select.select([fd], [], [], ANSWER_S)[0], "no INIT"
        request = os.read(fd, 1 << 20)
        limit = int(Path("/proc/sys/fs/fuse/max_pages_limit").read_text())
        negotiated, reply = negotiate(request, may_passthrough=self._why_not, pages_limit=limit)
        os.write(fd, reply)
        return fd, negotiated

    def _start(self, *, resend: bool) -> Process:
        handed = {
            "server": self.server,
            "source": self.source,
            "sync_interval_s": self._sync_interval_s,
            "negotiated": self.negotiated,
            "device_fd": self.fd,
            "table_fd": self.table.fd,
            "resend": resend,
        }
        return Process(handed, self.log)

    # ---- who serves ----

    def kill(self) -> None:
        """SIGKILL; requests wait from now on. The dead one is gone when this returns."""
        self.process.end()

    def succeed(self) -> None:
        """Starts the next process and waits until it serves."""
        self.process = self._start(resend=True)
        self.process.wait_ready()

    def retire(self) -> None:
        """Tells the process to end, and waits for that; requests wait from now on."""
        self.process.end(kill=False)
        assert self.process.popen.returncode == 0, self.log.read_text()

    def facts(self) -> dict[str, Any]:
        """Counters of the process that serves now, its descriptors, and why no passthrough."""
        facts: dict[str, Any] = json.loads(self.process.ask(b"facts"))
        return facts

    def distrust_names(self) -> None:
        """The kernel asks for every name again."""
        assert self.process.ask(b"invalidate") == b"done"

    def name_changed(self, directory_ino: int, name: str) -> None:
        """Has the process take an event about a name."""
        assert self.process.ask(f"changed {directory_ino} {name}".encode()) == b"done"

    def free(self, path: str) -> m.Freed:
        """Drops what is cached of a path."""
        freed = self.client.call(m.Free(self.namespace, path.encode()))
        assert isinstance(freed, m.Freed), freed
        return freed

    # ---- the end ----

    def abort(self) -> None:
        """Whoever waits in the kernel for an answer gets an error."""
        abort(self.device)
