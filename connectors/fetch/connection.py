"""A handle of libcurl with its own connection: a lane. One thread at a time drives its request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import pycurl

from connectors.fetch.exchange import PIECE_BYTES, Exchange
from connectors.fetch.multi import Ended, Multi, close_apart
from connectors.fetch.request import HttpRequest

CHUNK_BYTES: Final = 1 << 20
SEND_TURNS: Final = 4  # of libcurl, to send a request on a kept connection


class CurlConnection:
    """A handle of libcurl, its connection, and the request that it serves. Used by one thread at a
    time; `wake` alone may be called by any other."""

    def __init__(self, share: Any = None) -> None:
        self._multi = Multi(connections=1)
        self.exchange = Exchange(share=share)
        self.ended: Ended | None = None
        self.wake = self._multi.wake
        self._may_resolve = False
        _open.add(self)

    def begin(self, get: HttpRequest) -> None:
        self.ended = None
        room_bytes = min(CHUNK_BYTES + PIECE_BYTES, get.size)
        self.exchange.begin(get, memoryview(bytearray(room_bytes)))
        self._multi.add(self.exchange)

    def wait(self, holds: Callable[[], bool], until_s: float) -> bool:
        """Drives the request until `holds()` or its end. Returns False if neither happens before
        `until_s` (`time.monotonic`)."""
        while self.ended is None and not holds():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            for ended in self._multi.turn(left_s):
                self.ended = ended
        return True

    def send(self) -> bool:
        """Sends the request of `begin` and waits for nothing. Returns False if that is not possible
        at once, as without a kept connection; the caller then ends the request."""
        for _ in range(SEND_TURNS):
            for ended in self._multi.turn(0.0):
                self.ended = ended
            if self.ended is not None or self.exchange.curl.getinfo(pycurl.REQUEST_SIZE):
                return True  # also if the reply, or an error, has arrived already
        return False

    def end(self) -> None:
        """Ends the request; keeps the connection if the reply was read to its end."""
        self._multi.remove(self.exchange)
        self.exchange.room = memoryview(b"")
        self._may_resolve = self.exchange.may_resolve

    def close(self) -> None:
        """Closes the lane. Waits for nothing, see `close_apart`."""
        close_apart(self._close, self._may_resolve)

    def _close(self) -> None:
        self._multi.close()
        self.exchange.close()
        _open.discard(self)


# Keeps each lane reachable until it is closed. If the garbage collector finalizes pycurl's handles
# in any order, they fail or abort the process.
_open: Final[set[CurlConnection]] = set()
