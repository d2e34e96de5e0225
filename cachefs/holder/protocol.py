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

import socket
from typing import NamedTuple

from cachefs.network.unix_sockets import receive_with_fds, send_with_fds

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
    """Sends a datagram without waiting for its peer; duplicates its descriptors. Raises OSError."""
    verb, key, data, fds = datagram
    send_with_fds(sock, [f"{verb} {key}\n".encode(), data], fds)


def receive(sock: socket.socket) -> Datagram:
    """Returns the next datagram. Raises OSError, also at the end; ValueError if it is cut off."""
    body, fds = receive_with_fds(sock, MAX_BYTES, MAX_FDS)
    if not body:
        raise ConnectionResetError("it has ended")
    line, _, data = body.partition(b"\n")
    verb, _, key = line.decode("ascii", "replace").partition(" ")
    return Datagram(verb, key, data, tuple(fds))
