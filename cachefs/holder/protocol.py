"""The datagrams between the holder and its peers: a line `VERB key`, a newline, and opaque bytes.

A peer sends one request at a time and reads the reply:

    PUT key + meta, descriptors   OK. A key that is held keeps its first descriptors.
    LIST                          KEYS + a line `key name` for each key, with its claimant's name.
    GET key                       ENTRY key + meta, descriptors; NONE.
    CLAIM key + name              OK; NONE. The sender is the claimant of the key from now on; the
                                  former one gets HANDOVER key.
    DROP key                      OK; NONE.
    WATCH                         KEYS, and from then on events: PUT key; DROP key; CLAIM key +
                                  name; FREE key when the claimant of a key has ended.

Anything else gets ERROR + a text.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from cachefs.network.unix_sockets import fds_in, fds_message, fds_room

MAX_BYTES = 64 << 10  # of a datagram
MAX_META_BYTES = 32 << 10
MAX_KEY_BYTES = 100
MAX_NAME_BYTES = 24  # of a claimant; the lines of all keys fit into one datagram
MAX_FDS = 4
SOCKET_NAME = "holder.sock"


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
    line = f"{verb} {key}\n".encode()
    sock.sendmsg([line, data], fds_message(fds), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> Datagram | None:
    """Returns the next datagram; None at the end. Raises OSError, and ValueError (after closing
    descriptors) for a datagram that is cut off or not text."""
    body, rights, flags, _ = sock.recvmsg(MAX_BYTES, fds_room(MAX_FDS), socket.MSG_CMSG_CLOEXEC)
    fds = fds_in(rights)
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
