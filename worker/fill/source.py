"""Where the bytes of a fill come from: the origin alone, or peers before it (`worker.peers`).

Blocking; called in threads. Nothing of it retries: a body that breaks off is gone on with by the
fill (`worker.fill.retry`), which asks again from the first page that is not whole.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from cachefs.core.errors import BadBody, CacheFSError
from cachefs.core.model import PAGE_BYTES, Fingerprint, Kind, NamespaceId, Origin
from connectors.base import Body, Connector
from connectors.fetch.request import WholeFileRequest

MOST_FOUND: Final = 1000  # connectors that are remembered
WHOLE_BYTES: Final = PAGE_BYTES  # files up to this size come from the origin in one buffer

ConnectorFor = Callable[[NamespaceId, str], Connector]


class Purpose(enum.Enum):
    """For whom a fill is, which decides who may be asked. Only a `READ` waits for what a peer has
    to bring first, for one that comes before this node in the order of owners. A peer may wait for
    a `READ` here where both go by the same view: so no two nodes ever wait for each other."""

    READ = "read"  # somebody on this node waits, or will; others may bring it
    SERVE = "serve"  # a peer asked, or it is ours: nobody is asked who would have to ask others
    MIGRATE = "migrate"  # only from peers that have it, never from the origin


class NotHere(CacheFSError):
    """No peer has it, and the origin was not to be asked; or it is on its way here from a peer by
    another view than that of the peer who asks. Never leaves the worker."""

    code = "not-here"


class SourceBody(Protocol):
    """As `connectors.base.Body`. `from_peer`: where the last chunk came from. `checksum`: xxh3_64
    of the last chunk where it was exactly one page and was verified, else None."""

    @property
    def from_peer(self) -> bool: ...
    @property
    def checksum(self) -> int | None: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    def close(self) -> None:
        """From any thread, at any time; a read under way ends soon. Idempotent."""


class Source(Protocol):
    """Bytes of files. Thread-safe."""

    def ask(self, origin: Origin) -> WholeFileRequest | None:
        """Returns the request for all of a small file, where nobody but the origin has it (see
        `Connector.ask`); None: `read` is the way to it. Asked in the loop, answered at once."""

    def waits_for_peers(self, origin: Origin, offset: int) -> int | None:
        """Would a read for a reader here wait for what a peer has to bring first, and by the view
        of which epoch? Asked in the loop, answered at once. Such reads get threads of their own:
        were they to share those in which this node brings what it owns, two nodes could wait for
        each other's threads."""

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        """`size` bytes at `offset`, all of one block; chunks with a checksum are whole pages, and
        a read that begins and ends with pages costs the least. It and the iteration raise what a
        connector's `read` and its body raise, and NotHere."""


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
    """The origin alone. `connector_for` is called in threads and may block; it raises the typed
    errors."""

    def __init__(self, connector_for: ConnectorFor) -> None:
        self._connector_for = connector_for
        self._found: dict[tuple[NamespaceId, str], Connector] = {}  # by the last reads

    def waits_for_peers(self, origin: Origin, offset: int) -> int | None:
        return None

    def ask(self, origin: Origin) -> WholeFileRequest | None:
        found = self._found.get((origin.content.namespace, origin.ufs))
        return found.ask(origin.path, _version(origin)) if found is not None else None

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
