"""A client's process in its supervisor: pid, pidfd, control socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from cachefs.core.specs import ClientSpec, Held
from cachefs.launcher.stdin_document import standard_input

CLIENT_MODULE: Final = "cachefs.fuse.client"
_ANON: Final = "RssAnon:"
_REAP_S: Final = 0.1  # for a process whose other threads end late; a successor waits for it


class Process:
    """A client's process. `child` is None if another process started it."""

    def __init__(
        self, pid: int, control: socket.socket, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pid = pid
        self.control = control
        self.said_ending = False
        self._child = child
        self.pidfd = os.pidfd_open(pid)

    @classmethod
    def start(
        cls, spec: ClientSpec, python: str, *, successor: bool, held: Held | None = None
    ) -> Process:
        """Starts a client of an interpreter (and so of a version), which inherits standard error
        and the descriptors of `held`. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            spec = msgspec.structs.replace(
                spec, control_fd=theirs.fileno(), successor=successor, held=held
            )
            kept = (held.fuse_fd, held.table_fd) if held is not None else ()
            try:
                with standard_input(msgspec.msgpack.encode(spec)) as stdin:
                    child = subprocess.Popen(
                        [python, "-I", "-m", CLIENT_MODULE],
                        stdin=stdin,
                        stdout=subprocess.DEVNULL,
                        cwd="/",
                        pass_fds=[theirs.fileno(), *kept],
                        start_new_session=True,
                    )
            except BaseException:
                ours.close()
                raise
        return cls(child.pid, ours, child)

    @classmethod
    def adopt(cls, pid: int, control_fd: int) -> Process | None:
        """Returns the process at the other end of a control socket, which another process started;
        None if it has ended (its pid may be reused)."""
        control = socket.socket(fileno=control_fd)
        os.set_inheritable(control_fd, False)
        with contextlib.suppress(ProcessLookupError):
            found = cls(pid, control)
            if not found._has_hung_up():
                return found
            os.close(found.pidfd)
        control.close()
        return None

    def _has_hung_up(self) -> bool:
        try:
            return not self.control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal. Does nothing if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def is_dead(self) -> bool:
        """Returns whether its main thread has ended. The kernel may hold another thread in a
        notification that waits for a request which only a successor answers, so the pidfd does not
        suffice: the process as a whole never ends."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] in ("Z", "X")

    def anonymous_bytes(self) -> int:
        """Returns the memory that only this process has; 0 if it has ended."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith(_ANON)), 0)

    def ended_well(self) -> bool:
        """Returns whether the process ended because the mount had ended."""
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._child.wait(_REAP_S) == 0
        return self.said_ending

    def was_killed(self) -> bool:
        """Returns whether SIGKILL ended the process, or its exit status is unknown."""
        status = self._child.poll() if self._child is not None else None
        return status in (None, -signal.SIGKILL)

    def close(self) -> None:
        self.control.close()
        os.close(self.pidfd)
