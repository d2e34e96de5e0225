"""The messages between supervisor and client: one msgpack document per datagram of a socketpair.

`Serve` carries the descriptors of /dev/fuse and of the takeover table. The command line requests an
upgrade with the same messages, on the supervisor's socket in the state home.
"""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from cachefs.core.errors import ProtocolError
from cachefs.core.messages import Failure
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.network.unix_sockets import close_all, receive_with_fds, send_with_fds

BEAT_S: Final = 0.25
MAX_BYTES: Final = 64 << 10
MAX_FDS: Final = 2


class ControlMessage(msgspec.Struct, frozen=True, tag=True):
    """The base of all messages; the tag is the class name."""


class Ready(ControlMessage, frozen=True):
    """Client: is connected to the server and can serve. `warning` is one line for users."""

    warning: str = ""


class Failed(ControlMessage, frozen=True):
    """Client: cannot serve, and ends."""

    failure: Failure


class Serve(ControlMessage, frozen=True):
    """Supervisor: serve from now on, `takeover`: after a predecessor. Carries both descriptors."""

    negotiated: Negotiated
    takeover: bool


class Serving(ControlMessage, frozen=True):
    """Client: answers requests from now on."""


class Beat(ControlMessage, frozen=True):
    """Client: its loop runs. Sent every `BEAT_S`."""


class Retire(ControlMessage, frozen=True):
    """Supervisor: read no more requests, and end without unmounting; a successor is ready."""


class Retired(ControlMessage, frozen=True):
    """Client: reads no more requests."""


class Ending(ControlMessage, frozen=True):
    """Client: the mount has ended; no successor is needed."""


class Leaving(ControlMessage, frozen=True):
    """Supervisor: ends after an upgrade; the client must start one of the client's version."""


class Upgrade(ControlMessage, frozen=True):
    """Command line: start a client of this interpreter, which takes over."""

    python: str


class Upgraded(ControlMessage, frozen=True):
    """Supervisor: the pid of the client that serves now, or the failure of the upgrade."""

    pid: int = 0
    failure: Failure | None = None


AnyControlMessage = (
    Ready | Failed | Serve | Serving | Beat | Retire | Retired | Ending | Leaving | Upgrade
    | Upgraded
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyControlMessage] = msgspec.msgpack.Decoder(AnyControlMessage)
_negotiated = msgspec.msgpack.Decoder(Negotiated)


def send(sock: socket.socket, note: ControlMessage, fds: tuple[int, ...] = ()) -> None:
    """Sends without blocking. Raises OSError: BlockingIOError when the peer does not read."""
    send_with_fds(sock, [_encoder.encode(note)], fds)


def receive(sock: socket.socket) -> tuple[AnyControlMessage | None, list[int]]:
    """Returns a message and its descriptors (close-on-exec), which the caller owns; None at the
    end. Blocks as the socket does. Raises OSError, ProtocolError (after closing descriptors)."""
    fds: list[int] = []
    try:
        data, fds = _receive(sock)
        return _decoder.decode(data) if data else None, fds
    except (ValueError, msgspec.DecodeError) as err:
        close_all(fds)
        raise ProtocolError(f"not a known message: {err}") from err


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    try:
        return receive_with_fds(sock, MAX_BYTES, MAX_FDS)
    except ConnectionResetError:
        # The peer ended with unread messages. The kernel reports this once, before the peer's last
        # messages, which are still queued (net/unix/af_unix.c: the error precedes the queue).
        return receive_with_fds(sock, MAX_BYTES, MAX_FDS)


def encode_negotiated(values: Negotiated) -> bytes:
    return _encoder.encode(values)


def decode_negotiated(data: bytes) -> Negotiated:
    """Returns the decoded values. Raises ProtocolError."""
    try:
        return _negotiated.decode(data)
    except msgspec.DecodeError as err:
        raise ProtocolError(f"malformed values of INIT: {err}") from err
