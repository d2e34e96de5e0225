"""The replies to the requests for a listing's pages.

A page names the next one, so the connector requests that as soon as it has parsed the names of the
page, before the master merges them: the way to the store and back costs no further time. At most
one page is in flight, and it waits in its socket. It does not count in the limit of requests in
flight. If the caller takes longer than `AHEAD_LIMIT_S` for a page, the listing requests no further
page ahead: its server would wait with the reply, and the reply would be old.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cachefs.core.errors import CacheFSError
from connectors.bodies import read_whole_body
from connectors.fetch.request import HttpRequest
from connectors.fetch.sender import Sender
from connectors.fetch.sent_request import SentRequest

AHEAD_LIMIT_S: Final = 5.0


class PageReplies:
    """The replies of one listing, by the token of the page; "": the first page. For one thread.
    The listing closes it (`connectors.pages.closing`)."""

    def __init__(
        self,
        sender: Sender,
        request: Callable[[str], HttpRequest],
        path: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`request(token)` raises the errors of credentials."""
        self._sender = sender
        self._request = request
        self._path = path
        self._clock = clock
        self._ahead: tuple[str, SentRequest, float] | None = None
        self._is_slow = False  # the caller

    def body(self, token: str) -> bytes:
        """Returns the reply for a page, which was requested ahead or is requested now."""
        sent = self._taken(token)
        if sent is None:
            return bytes(read_whole_body(self._sender.send(self._request(token), self._path)))
        return bytes(read_whole_body(self._sender.receive(sent)))

    def _taken(self, token: str) -> SentRequest | None:
        """Returns the request in flight for this page. Ends that for another page, as
        after an error, and one that waited for too long."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        its_token, sent, since_s = ahead
        self._is_slow = self._clock() - since_s > AHEAD_LIMIT_S
        if its_token == token and not self._is_slow:
            return sent
        sent.close()
        return None

    def ask(self, token: str) -> None:
        """Requests the next page, if it can be requested ahead. An error of its credentials is
        raised by `body`."""
        self.close()
        if not token or self._is_slow:
            return
        try:
            sent = self._sender.send_ahead(self._request(token), self._path)
        except CacheFSError:
            return
        if sent is not None:
            self._ahead = token, sent, self._clock()

    def close(self) -> None:
        """Ends the request in flight. Idempotent."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead[1].close()
