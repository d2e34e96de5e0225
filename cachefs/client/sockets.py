"""SOCK_SEQPACKET sockets to a node's server: connecting, and receiving a frame with its descriptor.
The functions follow the blocking mode of the socket and keep no state."""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from itertools import repeat
from typing import Any, Final

from cachefs.client.lost_descriptors import CAUSE, REMEDY
from cachefs.core.errors import NoDescriptorLeft, ProtocolError, Unreachable, lacks_descriptors
from cachefs.core.messages import MAX_FRAME_BYTES, Frame, decode
from cachefs.core.owned_fd import opened
from cachefs.network.unix_sockets import Ancillary, close_all, fds_in, fds_room, peer_credentials

MAX_IN_FLIGHT: Final = 3072  # calls of one connection
CONNECT_LIMIT_S: Final = 2.0  # the queue of a server that hangs may be full
_MAX_FDS: Final = 4  # more than one is an error, but all of them must be closed
_CUT_OFF: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # int, because enums are slow
_NO_ROOM: Final = int(socket.MSG_CTRUNC)  # of the ancillary data alone
_ANCILLARY_BYTES: Final = fds_room(_MAX_FDS)
_TIMEVAL: Final = struct.Struct("@ll")
_FLAGS: Final = int(socket.MSG_CMSG_CLOEXEC)


def connect_socket(path: str) -> socket.socket:
    """Returns a connected blocking socket. `path` may be longer than the 107 bytes of an address.
    Raises Unreachable if no process listens there, or accepts nothing within `CONNECT_LIMIT_S`, and
    OSError if this process may open no more files."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        _limit_sends(sock, CONNECT_LIMIT_S)
        connect_long(sock, path)
        _limit_sends(sock, 0)
    except BlockingIOError as err:
        sock.close()
        raise Unreachable(
            f"the server accepts no connection: its queue has been full for {CONNECT_LIMIT_S:g} s",
            remedy="see its log",
            path=path,
        ) from err
    except OSError as err:
        sock.close()
        if lacks_descriptors(err):
            raise
        raise Unreachable(
            f"the server does not answer: {err.strerror}", remedy="is it running?", path=path
        ) from err
    except BaseException:  # of a signal handler
        sock.close()
        raise
    return sock


def _limit_sends(sock: socket.socket, limit_s: float) -> None:
    """Limits each connect and send of a blocking socket; 0: no limit. A Python timeout would make
    the socket non-blocking, and then a connect does not wait for the queue at all."""
    microseconds = round(limit_s * 1e6)
    limit = _TIMEVAL.pack(*divmod(microseconds, 10**6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def connect_long(sock: socket.socket, path: str) -> None:
    """Connects to a path that may be longer than an address. Raises OSError."""
    directory, name = os.path.split(path)
    with opened(os.open, directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) as held:
        sock.connect(f"/proc/self/fd/{held.fileno()}/{name}")


def listener_pid(sock: socket.socket) -> int:
    """Returns the pid of the listening process; 0 if it is in another pid namespace."""
    return peer_credentials(sock)[0]


def listener_uid(sock: socket.socket) -> int:
    """Returns the user of the listening process."""
    return peer_credentials(sock)[1]


class DescriptorLost(NoDescriptorLeft):
    """A frame arrived without the descriptor that was sent with it: this process may open no more
    files. `data`: the frame, which has all its bytes (see `cachefs.client.lost_descriptors`)."""

    def __init__(self, data: bytes) -> None:
        super().__init__(CAUSE, remedy=REMEDY)
        self.data = data


Received = tuple[bytes, list[Ancillary], int, Any]  # as from `socket.recvmsg`


def receive_all(sock: socket.socket, inbox: deque[Any], most: int) -> None:
    """Appends what has arrived, at most so many frames, as `Received`. Raises OSError as the
    socket does, after the last frame; at the end of the stream they are empty. All of this is one
    call in C, so that no signal handler runs between the arrival of a descriptor and the append."""
    sizes = repeat(MAX_FRAME_BYTES, most)
    inbox.extend(map(sock.recvmsg, sizes, repeat(_ANCILLARY_BYTES), repeat(_FLAGS)))


def descriptors_of(received: Received) -> list[int]:
    """Returns the descriptor of a frame, if any. Raises as `receive`, but closes nothing."""
    data, ancillary, flags, _ = received
    if not ancillary and not flags & _CUT_OFF:
        return []
    fds = fds_in(ancillary)
    if data and not fds and flags & _CUT_OFF == _NO_ROOM:
        raise DescriptorLost(data)
    if len(fds) > 1 or flags & _CUT_OFF:
        raise ProtocolError("a frame of the server was truncated")
    return fds


def receive(sock: socket.socket) -> tuple[bytes, int | None]:
    """Returns one frame and its descriptor (close-on-exec), which the caller owns; b"" at the end.
    Raises OSError as the socket does, DescriptorLost, and ProtocolError for a frame that is
    truncated or has more than one descriptor; then no descriptor stays open."""
    received = sock.recvmsg(MAX_FRAME_BYTES, _ANCILLARY_BYTES, _FLAGS)
    try:
        fds = descriptors_of(received)
    except ProtocolError:
        close_all(fds_in(received[1]))
        raise
    return received[0], fds[0] if fds else None


def decode_owned(data: bytes, fd: int | None) -> Frame:
    """Returns the frame of these bytes. Raises ProtocolError, and closes the frame's descriptor."""
    try:
        return decode(data)
    except ProtocolError:
        close_fd(fd)
        raise


def close_fd(fd: int | None) -> None:
    """Closes a descriptor, if any."""
    if fd is not None:
        os.close(fd)
