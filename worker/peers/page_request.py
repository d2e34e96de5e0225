"""A request to a peer for pages of a content. Blocking; used by one thread."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import xxhash

from cachefs.core import cluster as c
from cachefs.core.errors import CacheFSError, ProtocolError
from cachefs.core.messages import Failure, error_of
from cachefs.core.model import Origin
from cachefs.core.pages import PageRange, range_bytes
from worker.peers.connections import BadAnswer, ClosedBefore, Connection, Connections, Head
from worker.peers.source_selection import Answer, Candidate, RequestMode

log = logging.getLogger(__name__)

MOST_FAILURE_BYTES: Final = 64 << 10
_WAYS: Final = {RequestMode.HAVE: "&have=1", RequestMode.FILL: "", RequestMode.NEXT: "&next=1"}
_ANSWERS: Final = {
    200: Answer.HAS,
    409: Answer.NOT_OWNER,
    410: Answer.REFUSED,
    422: Answer.REFUSED,
    502: Answer.CUT_OFF,
    504: Answer.CUT_OFF,
}
_CHECKSUMS: Final = c.CHECKSUMS_HEADER.lower()
_SOURCE: Final = c.SOURCE_HEADER.lower()


class WrongPage(OSError):
    """The checksum of a page does not match its bytes."""

    def __init__(self, page: int) -> None:
        super().__init__(f"the checksum of page {page} does not match")
        self.page = page


class WantedPages(NamedTuple):
    """Pages of one block of a content."""

    origin: Origin
    pages: PageRange


class PageRequest:
    """A request and its reply. `start` sends the request. Once `fileno` is readable, `answer`
    returns the reply; after `HAS`, `pages` yields the bytes. `finish` or `close` ends it."""

    def __init__(
        self, connections: Connections, candidate: Candidate, headers: Mapping[str, str]
    ) -> None:
        self.candidate = candidate
        self.at_once = True  # the peer had the bytes in its cache
        self.refusal: CacheFSError | None = None  # the origin's, after `REFUSED`
        self._connections = connections
        self._headers = headers
        self._connection: Connection | None = None
        self._is_reused = False
        self._target = ""
        self._size_bytes = 0
        self._pages = (0, 0)
        self._head: Head | None = None
        self._sums: list[int] = []

    def start(self, wanted: WantedPages) -> None:
        """Sends the request, on a new connection if a reused one fails. Raises OSError."""
        origin, (first, end) = wanted
        self._size_bytes = origin.size
        self._pages = wanted.pages
        content, way = origin.content, self.candidate.way
        self._target = (
            f"{c.DATA_PATH}/{content.name}?ino={content.ino}&first={first}&end={end}"
            f"&epoch={self.candidate.epoch}{_WAYS[way]}"
        )
        if way is not RequestMode.HAVE:
            self._target += f"&worker={self.candidate.peer}"
            facts = base64.b64encode(msgspec.msgpack.encode(origin)).decode()
            self._headers = {**self._headers, c.ORIGIN_HEADER: facts}
        try:
            self._send(fresh=False)
        except OSError:
            if not self._is_reused:
                raise
            self._send(fresh=True)

    def _send(self, *, fresh: bool) -> None:
        self.close()
        connection, self._is_reused = self._connections.take(self.candidate.url, fresh=fresh)
        self._connection = connection
        connection.ask("GET", self._target, self._headers)

    def fileno(self) -> int:
        assert self._connection is not None
        return self._connection.fileno()

    @property
    def is_over(self) -> bool:
        """True if the reply has no body."""
        return self._head is None

    def answer(self) -> Answer | None:
        """Reads the head of the reply. Returns None if there is none yet; the caller waits for
        `fileno` again. That may be of a new connection: the request is sent again if the peer had
        closed a reused one. Raises OSError."""
        assert self._connection is not None
        try:
            if not self._connection.has_reply():
                return None
            head = self._connection.head()
        except (ClosedBefore, ConnectionResetError):
            if not self._is_reused:
                raise
            self._send(fresh=True)
            return None
        if head.status == 200:
            self._begin(head)
        else:
            self._read_failure(head)
        return _ANSWERS.get(head.status, Answer.HAS_NOT)

    def _begin(self, head: Head) -> None:
        first, end = self._pages
        try:
            self._sums = [int(sum, 16) for sum in head.headers.get(_CHECKSUMS, "").split(",")]
        except ValueError as err:
            raise BadAnswer("the reply has no checksums") from err
        length = range_bytes(self._size_bytes, first, first + len(self._sums))
        if first + len(self._sums) > end or head.length != length:
            raise BadAnswer("the length of the reply does not match the request")
        self.at_once = head.headers.get(_SOURCE) != "origin"
        self._head = head

    def _read_failure(self, head: Head) -> None:
        connection = self._connection
        assert connection is not None
        if head.status in (401, 403):
            log.warning("peer %s refused this worker: status %s", self.candidate.url, head.status)
        if head.length > MOST_FAILURE_BYTES:
            return self.close()
        body = bytearray(head.length)
        connection.read_into(memoryview(body))
        if _ANSWERS.get(head.status) is Answer.REFUSED:
            self.refusal = _refusal(body)
        elif head.status not in (404, 409):
            log.debug("%s: %d %r", self.candidate.url, head.status, bytes(body[:200]))
        self._end(head)

    def pages(self, buffer: memoryview) -> Iterator[tuple[memoryview, int]]:
        """Yields the verified pages in order, each with its checksum. A page lies in `buffer` until
        the next one replaces it. Raises WrongPage and other OSErrors."""
        connection = self._connection
        if connection is None:
            raise ConnectionResetError("the read was given up")
        for page, known in enumerate(self._sums, self._pages[0]):
            view = buffer[: range_bytes(self._size_bytes, page, page + 1)]
            connection.read_into(view)
            if xxhash.xxh3_64_intdigest(view) != known:
                raise WrongPage(page)
            yield view, known

    def finish(self) -> None:
        """Returns the connection after the reply was read completely."""
        if self._head is not None:
            self._end(self._head)

    def _end(self, head: Head) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if head.is_last:
            connection.close()
        else:
            self._connections.give(self.candidate.url, connection)

    def close(self) -> None:
        """Ends the request; the rest of the reply is discarded. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        """Ends a read in another thread. Thread-safe."""
        connection = self._connection
        if connection is not None:
            connection.shut()


def _refusal(body: bytes | bytearray) -> CacheFSError:
    """Returns the error in a reply. Raises BadAnswer."""
    try:
        failure = c.decode_answer(body)
    except ProtocolError as err:
        raise BadAnswer("the reply names no error") from err
    if not isinstance(failure, Failure):
        raise BadAnswer("the reply names no error")
    return error_of(failure)
