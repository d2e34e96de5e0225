"""What supervisor and client say to each other: one msgpack document per datagram of a socketpair.

The descriptors of /dev/fuse and of the takeover table travel with `Serve`. The command line asks
for an upgrade in the same way, on the supervisor's socket in the state home.
"""

from __future__ import annotations

import os
import socket
from typing import Final

import msgspec

from cachefs.core.errors import ProtocolError
from cachefs.core.messages import Failure
from cachefs.fuse.kernel.negotiation import Negotiated

BEAT_S: Final = 0.25
MAX_BYTES: Final = 64 << 10
MAX_FDS: Final = 2


class Note(msgspec.Struct, frozen=True, tag=True):
    """Base of all; the tag is the class name."""


class Ready(Note, frozen=True):
    """Client: it is connected to the server and could serve. `warning` is a line for people."""

    warning: str = ""


class Failed(Note, frozen=True):
    """Client: it never will serve, and ends."""

    failure: Failure


class Serve(Note, frozen=True):
    """Supervisor: serve from now on, `takeover`: after a predecessor. With both descriptors."""

    negotiated: Negotiated
    takeover: bool


class Serving(Note, frozen=True):
    """Client: it answers from now on."""


class Beat(Note, frozen=True):
    """Client, every `BEAT_S`: its loop runs."""


class Retire(Note, frozen=True):
    """Supervisor: read no more requests, and end without unmounting; a successor is ready."""


class Retired(Note, frozen=True):
    """Client: it reads no more requests."""


class Ending(Note, frozen=True):
    """Client: the mount is gone, it ends for good."""


class Upgrade(Note, frozen=True):
    """Command line: let a client of this interpreter take over."""

    python: str


class Upgraded(Note, frozen=True):
    """Supervisor: who serves now, or why it could not be."""

    pid: int = 0
    failure: Failure | None = None


AnyNote = Ready | Failed | Serve | Serving | Beat | Retire | Retired | Ending | Upgrade | Upgraded

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyNote] = msgspec.msgpack.Decoder(AnyNote)
_negotiated = msgspec.msgpack.Decoder(Negotiated)


def send(sock: socket.socket, note: Note, fds: tuple[int, ...] = ()) -> None:
    """Sends without blocking. Raises OSError: BlockingIOError when the peer does not read."""
    socket.send_fds(sock, [_encoder.encode(note)], fds, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[AnyNote | None, list[int]]:
    """A note and its descriptors (close-on-exec), which the caller owns; None at the end. Blocks as
    the socket does. Raises OSError, ProtocolError (the descriptors are closed then)."""
    data, fds, _, _ = socket.recv_fds(sock, MAX_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None, fds
    try:
        return _decoder.decode(data), fds
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        for fd in fds:
            os.close(fd)
        raise ProtocolError(f"not a note: {err}") from err


def encode_negotiated(values: Negotiated) -> bytes:
    return _encoder.encode(values)


def decode_negotiated(data: bytes) -> Negotiated:
    """Raises ProtocolError."""
    try:
        return _negotiated.decode(data)
    except msgspec.DecodeError as err:
        raise ProtocolError(f"not what INIT agreed on: {err}") from err
