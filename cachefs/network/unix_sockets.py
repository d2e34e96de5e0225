"""Descriptors over Unix sockets, and the credentials of the peer. Imports the standard library
only: the holder uses it."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Sequence

Ancillary = tuple[int, int, bytes]  # level, type, data, as from `socket.recvmsg`

_FD_BYTES = array.array("i").itemsize
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def fds_room(count: int) -> int:
    """Returns the ancillary buffer size, in bytes, for so many descriptors."""
    return socket.CMSG_SPACE(count * _FD_BYTES)


def fds_in(ancillary: Iterable[Ancillary]) -> list[int]:
    """Returns the descriptors in ancillary data, which the caller owns."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    return list(fds)


def send_with_fds(sock: socket.socket, parts: Sequence[bytes], fds: Sequence[int] = ()) -> None:
    """Sends one datagram; duplicates its descriptors. Raises OSError: BlockingIOError when the peer
    does not read."""
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL  # which `socket.send_fds` does not pass on
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg(parts, rights, flags)


def receive_with_fds(sock: socket.socket, max_bytes: int, max_fds: int) -> tuple[bytes, list[int]]:
    """Returns a datagram and its descriptors (close-on-exec), which the caller owns; b"" and none
    at the end. Blocks as the socket does. Raises OSError, and ValueError for a datagram that is cut
    off; then no descriptor stays open."""
    room = fds_room(max_fds)
    data, ancillary, flags, _ = sock.recvmsg(max_bytes, room, socket.MSG_CMSG_CLOEXEC)
    fds = fds_in(ancillary)
    if data and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        return data, fds
    close_all(fds)
    if data:
        raise ValueError("the datagram is too long, or has too many descriptors")
    return b"", []


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def listen_in(directory: int, name: str, backlog: int) -> socket.socket:
    """Returns a non-blocking socket for datagrams that listens at a name in a directory, whose path
    may be longer than an address. Replaces what has this name. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{name}")
        listener.listen(backlog)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Returns (pid, uid, gid) of the peer; pid 0 if it is in another pid namespace."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid
