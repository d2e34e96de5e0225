"""Connections on which a process may present its token. No event loop.

`localhost` stands for 127.0.0.1. Any user may listen at [::1] beside a server at 127.0.0.1, so a
client that tried both addresses could present its token to the wrong process.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from cachefs.network.socket_owners import ForeignListener

# Called with an address and the local end of the connection (None before it is connected). Raises
# OSError if the process at the address must not get the token.
ListenerCheck = Callable[[Any, Any], None]

_LOCALHOST: Final = "127.0.0.1"


def accept_any_listener(peer: Any, local: Any) -> None:
    """Accepts every process."""


def resolve_localhost(host: str) -> str:
    """Returns the address of a loopback name; any other name unchanged."""
    return _LOCALHOST if host.lower() == "localhost" else host


def connect(host: str, port: int, timeout_s: float | None, judge: ListenerCheck) -> socket.socket:
    """Returns a connection to the first address of a name that answers and passes `judge`, within
    `timeout_s`. Raises ForeignListener if an address did not pass, else the last OSError."""
    failed = OSError(f"{host} has no address")
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    found = socket.getaddrinfo(resolve_localhost(host), port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            rest_s = left_s(deadline)
            sock.settimeout(None if math.isinf(rest_s) else rest_s)
            sock.connect(address)
            judge(sock.getpeername(), sock.getsockname())
            sock.settimeout(timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except BaseException as err:
            sock.close()
            if not isinstance(err, OSError):
                raise
            failed = failed if isinstance(failed, ForeignListener) else err
    raise failed


def left_s(deadline: float) -> float:
    """Returns the time left until a deadline (monotonic). Raises TimeoutError after it."""
    rest_s = deadline - time.monotonic()
    if rest_s <= 0:
        raise TimeoutError("timed out")
    return rest_s
