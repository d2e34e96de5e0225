"""Ties the life of a child process to that of the server: the kernel kills the child when the
server has gone, also a child that is stopped and could not see the end of its socket.

The server holds the only write end of a pipe. The child inherits the read end, of which the kernel
knows that a change there is told to the child by SIGKILL (fcntl(2), F_SETSIG). The write end is
closed by the end of the server, however that comes. PR_SET_PDEATHSIG is no substitute: it follows
the thread that started the child, which here is one of a pool.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import weakref
from collections.abc import Sequence
from typing import Any


class Tied(subprocess.Popen[bytes]):
    """A child that the kernel kills when this process ends, or when this object is gone."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int], **options: Any) -> None:
        """As `subprocess.Popen`. Raises OSError."""
        read_end, write_end = os.pipe()  # close-on-exec: no other child gets the write end
        try:
            super().__init__(command, pass_fds=(*pass_fds, read_end), **options)
            fcntl.fcntl(read_end, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(read_end, fcntl.F_SETOWN, self.pid)
            flags = fcntl.fcntl(read_end, fcntl.F_GETFL)
            fcntl.fcntl(read_end, fcntl.F_SETFL, flags | os.O_ASYNC)
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        self._let_go = weakref.finalize(self, os.close, write_end)

    def poll(self) -> int | None:
        """As `subprocess.Popen.poll`; the pipe of a child that has ended is closed."""
        if (code := super().poll()) is not None:
            self._let_go()
        return code

    def wait(self, timeout: float | None = None) -> int:
        """As `subprocess.Popen.wait`; the pipe of the child is closed after it."""
        code = super().wait(timeout)
        self._let_go()
        return code
