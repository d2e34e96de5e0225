"""Descriptors over Unix sockets, and the credentials of the peer. Imports the standard library
only: the holder uses it."""

from __future__ import annotations

import array
import socket
import struct
from collections.abc import Iterable, Sequence

Ancillary = tuple[int, int, bytes]  # level, type, data, as from `socket.recvmsg`

_FD_BYTES = array.array("i").itemsize
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def fds_room(count: int) -> int:
    """Returns the ancillary buffer size, in bytes, for so many descriptors."""
    return socket.CMSG_SPACE(count * _FD_BYTES)


def fds_message(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    """Returns the ancillary data for `socket.sendmsg` that carries descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def fds_in(ancillary: Iterable[Ancillary]) -> list[int]:
    """Returns the descriptors in ancillary data, which the caller owns."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    return list(fds)


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Returns (pid, uid, gid) of the peer; pid 0 if it is in another pid namespace."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid
