"""A request whose reply a thread will read later.

It is in flight while the thread does other work: nothing drives libcurl, and the reply waits in
the socket, where its size is bounded.
"""

from __future__ import annotations

from collections.abc import Callable

from connectors.fetch.connection import CurlConnection
from connectors.fetch.request import HttpRequest


class SentRequest:
    """A request on a lane, before its reply. Dropping it ends the request and closes its
    connection. For one thread; the garbage collector may drop it in any."""

    def __init__(
        self,
        lane: CurlConnection,
        release: Callable[[CurlConnection], None],
        get: HttpRequest,
        path: str,
    ) -> None:
        self._lane: CurlConnection | None = lane
        self._release = release
        self.get = get
        self.path = path
        try:
            lane.begin(get)
            self.is_sent = lane.send()
        except BaseException:
            self.close()
            raise

    def take(self) -> CurlConnection:
        """Returns the lane, which this object no longer owns."""
        lane, self._lane = self._lane, None
        assert lane is not None
        return lane

    def close(self) -> None:
        """Ends the request, unless its lane was taken. Idempotent."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.end()
            self._release(lane)

    def __del__(self) -> None:
        self.close()
