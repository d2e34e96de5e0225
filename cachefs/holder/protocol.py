"""The datagrams between the holder and its peers: a line `VERB key`, a newline, and opaque bytes.

A peer sends one request at a time and reads the reply:

    PUT key + meta, descriptors   OK. A key that is held keeps its first descriptors.
    LIST                          KEYS + the keys, one a line.
    CLAIM key                     ENTRY key + meta, descriptors; NONE. The sender is the claimant of
                                  the key from now on; the former one gets HANDOVER key.
    DROP key                      OK; NONE.
    WATCH                         KEYS, and from then on events: PUT key, DROP key, and FREE key
                                  when the claimant of a key has ended.

Anything else gets ERROR + a text.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

MAX_BYTES = 64 << 10  # of a datagram
MAX_META_BYTES = 32 << 10
MAX_KEY_BYTES = 100
MAX_FDS = 4
SOCKET_NAME = "holder.sock"
_FD_BYTES = array.array("i").itemsize


class Datagram(NamedTuple):
    """A datagram. Its receiver owns the descriptors."""

    verb: str
    key: str = ""
    data: bytes = b""
    fds: tuple[int, ...] = ()


def send(sock: socket.socket, datagram: Datagram) -> None:
    """Sends a datagram; duplicates its descriptors. Raises OSError, BlockingIOError for a peer that
    does not read."""
    verb, key, data, fds = datagram
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    line = f"{verb} {key}\n".encode()
    sock.sendmsg([line, data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> Datagram | None:
    """Returns the next datagram; None at the end. Raises OSError, and ValueError (after closing
    descriptors) for a datagram that is cut off or not text."""
    room = socket.CMSG_SPACE(MAX_FDS * _FD_BYTES)
    body, rights, flags, _ = sock.recvmsg(MAX_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    fds = [fd for right in rights for fd in _descriptors(*right)]
    try:
        if not body:
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("the datagram is too long, or has too many descriptors")
        line, _, data = body.partition(b"\n")
        verb, _, key = line.decode("ascii").partition(" ")
        datagram = Datagram(verb, key, data, tuple(fds))
        fds = []
        return datagram
    finally:
        close_all(fds)


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _descriptors(level: int, kind: int, data: bytes) -> list[int]:
    if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
        return []
    fds = array.array("i")
    fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    return list(fds)
