"""A connection of the node socket: datagrams in, datagrams and descriptors out.

Owns the socket and every descriptor passed to `send`; `on_frame` owns the descriptors that it gets.
All methods belong to the event loop. The connection is closed if the client does not read while
`MAX_QUEUED` frames wait, and if a frame arrives without all of its bytes or descriptors: it would
be another request.
"""

from __future__ import annotations

import array
import asyncio
import collections
import os
import socket
from collections.abc import Callable

from cachefs.core.errors import CacheFSError, NoDescriptorLeft, ProtocolError
from cachefs.core.messages import MAX_FRAME_BYTES

MAX_QUEUED = 4096
FRAMES_PER_WAKEUP = 64  # other sessions must not wait
_RIGHTS_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)
_FLAGS = socket.MSG_CMSG_CLOEXEC
_CUT_OFF = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # int, because enums are slow


class Channel:
    """A connection. Calls `on_frame(bytes, fd)` for each frame, and `on_close(error)` once; `error`
    is the cause of a close by this side, if it is one of the client's or of this process."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[bytes, int | None], None],
        on_close: Callable[[CacheFSError | None], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_frame = on_frame
        self._on_close = on_close
        self._queue: collections.deque[tuple[bytes, int | None]] = collections.deque()
        self.closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, data: bytes, fd: int | None = None) -> None:
        """Sends or queues one frame; owns `fd` and closes it. Never blocks, never raises."""
        if self.closed or len(self._queue) >= MAX_QUEUED:
            _close_fd(fd)
            self.close()
        elif self._queue or not self._try_send(data, fd):
            self._queue.append((data, fd))
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def close(self, error: CacheFSError | None = None) -> None:
        """Closes the connection and drops queued frames. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        while self._queue:
            _close_fd(self._queue.popleft()[1])
        self._on_close(error)

    def _readable(self) -> None:
        for _ in range(FRAMES_PER_WAKEUP):
            if self.closed:
                return
            try:
                data, rights, flags, _ = self._sock.recvmsg(MAX_FRAME_BYTES, _RIGHTS_BYTES, _FLAGS)
            except BlockingIOError:
                return
            except OSError:
                return self.close()
            fd = _one_descriptor(rights) if rights else None
            if not data or flags & _CUT_OFF:
                _close_fd(fd)
                return self.close(_cut_off(flags, fd) if data else None)
            self._on_frame(data, fd)

    def _writable(self) -> None:
        while self._queue:
            data, fd = self._queue[0]
            if not self._try_send(data, fd):
                return
            if self.closed:
                return
            self._queue.popleft()
        self._loop.remove_writer(self._sock.fileno())

    def _try_send(self, data: bytes, fd: int | None) -> bool:
        """Returns whether the frame is done: sent, or the connection is closed."""
        try:
            if fd is None:
                self._sock.send(data)
            else:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]).tobytes())
                self._sock.sendmsg([data], [rights])
        except BlockingIOError:
            return False
        except OSError:
            _close_fd(fd)
            if self._queue:
                self._queue[0] = (data, None)
            self.close()
            return True
        _close_fd(fd)
        return True


def _cut_off(flags: int, fd: int | None) -> CacheFSError:
    """Returns the error of a frame that is not complete. Without any descriptor, this process may
    open no more files."""
    if flags & _CUT_OFF == socket.MSG_CTRUNC and fd is None:
        return NoDescriptorLeft(
            "the descriptor of a request found no room: this server has as many files open as its"
            " limit allows",
            remedy="raise the limit of the server (`ulimit -n`)",
        )
    return ProtocolError("a frame is too long, or has too many descriptors")


def _one_descriptor(rights: list[tuple[int, int, bytes]]) -> int | None:
    """Returns the first descriptor that was received, and closes all others."""
    fds = array.array("i")
    for _, _, data in rights:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for fd in fds[1:]:
        os.close(fd)
    return fds[0] if fds else None


def _close_fd(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
