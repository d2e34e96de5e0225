"""The sources of a fill's bytes: the origin alone, or peers before it (`worker.peers`).

Blocking; called in threads. A source never retries. After a body that breaks off, the fill
(`worker.fill.retry`) sends another request, from the first incomplete page on.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from cachefs.core.errors import BadBody, CacheFSError
from cachefs.core.model import PAGE_BYTES, Fingerprint, Kind, NamespaceId, Origin
from connectors.base import Body, Connector
from connectors.fetch.request import RangeRequest

MOST_FOUND: Final = 1000  # connectors that are remembered
WHOLE_BYTES: Final = PAGE_BYTES  # files up to this size come from the origin in one buffer
NO_EPOCH: Final = -2  # no view has it, see `Purpose.CUT_OFF`

ConnectorFor = Callable[[NamespaceId, str], Connector]


class Purpose(enum.Enum):
    """The purpose of a fill, which decides its sources. A `READ` may wait for a peer's fill, but
    only for a peer that precedes this node in owner order. A peer may wait for a `READ` here if
    both use the same view. A `CUT_OFF` may wait for any peer, and no peer waits for it. Others wait
    for no peer's fill. So no two nodes ever wait for each other."""

    READ = "read"  # for a reader of this node, now or soon; a peer may fill it
    SERVE = (
        "serve"  # for a peer, or owned by this node: never from a peer that would have to fill it
    )
    CUT_OFF = "cut off"  # a `READ` of an owner that does not reach the origin
    MIGRATE = "migrate"  # only from peers that have it cached, never from the origin


class NotHere(CacheFSError):
    """Raised where no peer has the pages and the origin must not be used, or where a fill in flight
    here waits for a peer by another view than the requesting peer's. Never leaves the worker."""

    code = "not-here"


class SourceBody(Protocol):
    """A `connectors.base.Body` that names its sender. `from_peer`: whether a peer sent the last
    chunk. `checksum`: xxh3_64 of the last chunk if that was exactly one page and was verified, else
    None."""

    @property
    def from_peer(self) -> bool: ...
    @property
    def checksum(self) -> int | None: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    def close(self) -> None:
        """Ends a read in progress soon. Thread-safe, idempotent."""


class Source(Protocol):
    """Bytes of files. Thread-safe."""

    def ask(self, origin: Origin, offset: int, size: int) -> RangeRequest | None:
        """Returns the request for bytes that only the origin has (see `Connector.ask`), or None:
        the caller uses `read`. Called in the loop; never blocks."""

    def waits_for_peers(self, origin: Origin, offset: int) -> int | None:
        """Returns the epoch of the view by which a `READ` would wait for a peer's fill; None: it
        would not wait. `NO_EPOCH`: it has to be a `CUT_OFF`. Called in the loop; never blocks. Such
        reads have separate threads: if they shared those of this node's own fills, two nodes could
        wait for each other's threads."""

    def has_stand_in(self, origin: Origin, offset: int) -> bool:
        """Returns whether another worker may read what the origin refused to this one, which has
        read nothing else there lately. Called in the loop; never blocks."""

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        """Returns the body of `size` bytes at `offset`, all in one block. Chunks with a checksum
        are whole pages; a read on page boundaries costs the least. The call and the iteration raise
        what a connector's `read` and its body raise, and NotHere."""


class OriginBody:
    """A body of a connector."""

    from_peer = False
    checksum = None

    def __init__(self, body: Body) -> None:
        self._body = body

    def __iter__(self) -> Iterator[memoryview]:
        return iter(self._body)

    def close(self) -> None:
        self._body.close()


class WholeBody:
    """A small file in one buffer."""

    from_peer = False
    checksum = None

    def __init__(self, data: memoryview, size: int) -> None:
        self._data = data
        self._size = size

    def __iter__(self) -> Iterator[memoryview]:
        yield self._data[: self._size]
        if len(self._data) != self._size:
            raise BadBody(f"{len(self._data)} bytes instead of {self._size}")

    def close(self) -> None:
        pass


class OriginSource:
    """The origin alone. `connector_for` is called in threads: it may block, and raises typed
    errors."""

    def __init__(self, connector_for: ConnectorFor) -> None:
        self._connector_for = connector_for
        self._found: dict[tuple[NamespaceId, str], Connector] = {}  # by `read`

    def waits_for_peers(self, origin: Origin, offset: int) -> int | None:
        return None

    def has_stand_in(self, origin: Origin, offset: int) -> bool:
        return False

    def ask(self, origin: Origin, offset: int, size: int) -> RangeRequest | None:
        found = self._found.get((origin.content.namespace, origin.ufs))
        return found.ask(origin.path, offset, size, _version(origin)) if found is not None else None

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        if purpose is Purpose.MIGRATE:
            raise NotHere("there are no peers to ask")
        connector = self._connector(origin.content.namespace, origin.ufs)
        version = _version(origin)
        if size == origin.size <= WHOLE_BYTES:
            return WholeBody(connector.read_all(origin.path, version), size)
        return OriginBody(connector.read(origin.path, offset, size, version))

    def _connector(self, namespace: NamespaceId, ufs: str) -> Connector:
        connector = self._connector_for(namespace, ufs)
        if len(self._found) >= MOST_FOUND:
            self._found.clear()
        self._found[namespace, ufs] = connector
        return connector


def _version(origin: Origin) -> Fingerprint:
    return Fingerprint(Kind.FILE, origin.size, origin.mtime_ns, origin.etag)
