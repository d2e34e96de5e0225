"""One request to a peer for pages of a content. Blocking; of one thread."""

from __future__ import annotations

import base64
import contextlib
import http.client
import logging
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import xxhash

from cachefs.core import cluster as c
from cachefs.core.model import Origin
from worker.peers.connections import Connections, Refused, shut
from worker.state.pages import PageRange, range_bytes
from worker.state.search import Answer, Candidate, Way

log = logging.getLogger(__name__)

MOST_FAILURE_BYTES: Final = 64 << 10
_WAYS: Final = {Way.HAVE: "&have=1", Way.FILL: "", Way.NEXT: "&next=1"}
_ANSWERS: Final = {
    200: Answer.HAS,
    409: Answer.NOT_OWNER,
    502: Answer.ORIGIN_FAILED,
    504: Answer.ORIGIN_FAILED,
}


class WrongPage(OSError):
    """The bytes have not the checksum that came with them."""

    def __init__(self, page: int) -> None:
        super().__init__(f"page {page} has not its checksum")
        self.page = page


class Wanted(NamedTuple):
    """Pages of one block of a content."""

    origin: Origin
    pages: PageRange


class Exchange:
    """`start` sends the question; once `fileno` is readable `answer` says what came, and after
    `HAS` `pages` yields the bytes. `finish` or `close` ends it."""

    def __init__(
        self, connections: Connections, candidate: Candidate, headers: Mapping[str, str]
    ) -> None:
        self.candidate = candidate
        self.at_once = True  # the peer had the bytes
        self._connections = connections
        self._headers = headers
        self._connection: http.client.HTTPConnection | None = None
        self._is_reused = False
        self._path = ""
        self._origin_header = ""
        self._size_bytes = 0
        self._pages = (0, 0)
        self._response: http.client.HTTPResponse | None = None
        self._sums: list[int] = []

    def start(self, wanted: Wanted, epoch: int) -> None:
        """Raises `Refused`."""
        origin, (first, end) = wanted
        self._size_bytes = origin.size
        self._pages = wanted.pages
        content = origin.content
        self._path = (
            f"{c.DATA_PATH}/{content.name}?ino={content.ino}&first={first}&end={end}"
            f"&epoch={epoch}{_WAYS[self.candidate.way]}"
        )
        if self.candidate.way is not Way.HAVE:
            self._origin_header = base64.b64encode(msgspec.msgpack.encode(origin)).decode()
        try:
            self._send(fresh=False)
        except Refused:
            if not self._is_reused:
                raise
            self._send(fresh=True)

    def _send(self, *, fresh: bool) -> None:
        self.close()
        connection, self._is_reused = self._connections.take(self.candidate.url, fresh=fresh)
        self._connection = connection
        connection.putrequest("GET", self._path, skip_accept_encoding=True)
        for name, value in self._headers.items():
            connection.putheader(name, value)
        if self._origin_header:
            connection.putheader(c.ORIGIN_HEADER, self._origin_header)
        connection.endheaders()

    def fileno(self) -> int:
        assert self._connection is not None
        return self._connection.sock.fileno()

    @property
    def is_over(self) -> bool:
        """No body is to be read (any more)."""
        return self._response is None

    def answer(self) -> Answer | None:
        """None: it was asked again, on another connection; wait for that. Raises `Refused`."""
        assert self._connection is not None
        try:
            response = self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            if not self._is_reused:
                raise
            self._send(fresh=True)
            return None
        if response.status == 200:
            self._begin(response)
        else:
            self._read_failure(response)
        return _ANSWERS.get(response.status, Answer.HAS_NOT)

    def _begin(self, response: http.client.HTTPResponse) -> None:
        first, end = self._pages
        sums = response.headers.get(c.CHECKSUMS_HEADER, "").split(",")
        try:
            self._sums = [int(sum, 16) for sum in sums]
        except ValueError as err:
            raise http.client.HTTPException("an answer without checksums") from err
        length = range_bytes(self._size_bytes, first, first + len(self._sums))
        if first + len(self._sums) > end or response.length != length:
            raise http.client.HTTPException("an answer of another length")
        self.at_once = response.headers.get(c.SOURCE_HEADER) != "origin"
        self._response = response

    def _read_failure(self, response: http.client.HTTPResponse) -> None:
        body = response.read(MOST_FAILURE_BYTES)
        if response.status in (401, 403):
            log.warning("%s refuses this worker: %s", self.candidate.url, response.status)
        if response.status not in (404, 409):
            log.debug("%s: %d %r", self.candidate.url, response.status, body[:200])
        if response.isclosed() and not response.will_close:
            self.finish()

    def pages(self, buffer: memoryview) -> Iterator[tuple[memoryview, int]]:
        """The verified pages of the answer, in order, each in `buffer` and valid until the next
        one, with its checksum. Raises `Refused`, WrongPage."""
        response = self._response
        assert response is not None
        for page, known in enumerate(self._sums, self._pages[0]):
            view = buffer[: range_bytes(self._size_bytes, page, page + 1)]
            if response.readinto(view) != len(view):
                raise ConnectionResetError("the body ended early")
            if xxhash.xxh3_64_intdigest(view) != known:
                raise WrongPage(page)
            yield view, known

    def finish(self) -> None:
        """All of the answer was read."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.give(self.candidate.url, connection)

    def close(self) -> None:
        """Whatever is still to come is not wanted. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        """From any thread: reading ends soon."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError, AttributeError):
                shut(connection)
