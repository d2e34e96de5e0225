"""Reads of files that are not complete on this node: opens and ranges, pipelined on one session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, NoDescriptorLeft, ProtocolError, Stale
from cachefs.core.model import Inode, NamespaceId
from cachefs.core.owned_fd import OwnedFd
from cachefs.library.node_session import TRIES, NodeSession, checked
from cachefs.library.pipeline import IN_FLIGHT, Pipeline
from cachefs.library.published_files import read_all
from cachefs.library.shared_socket import Reply, SocketLost

ASK_BYTES: Final = 1 << 20
FEW: Final = 16  # requests in flight after descriptors were lacking: each reply may have one


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """Bytes [start, stop) of a file, within its size."""

    inode: Inode
    start: int
    stop: int


class ColdReads:
    """One batch. `run` returns the bytes, or the error, of each item."""

    def __init__(
        self, session: NodeSession, namespace: NamespaceId, wanted: Mapping[int, Wanted]
    ) -> None:
        self._session = session
        self._namespace = namespace
        self._wanted = wanted
        self._done: dict[int, bytes | CacheFSError | OSError] = {}
        self._open: dict[int, _PartialRead] = {}

    def run(self) -> Mapping[int, bytes | CacheFSError | OSError]:
        """Reads everything; repeats what a lost connection interrupted, and with fewer requests in
        flight what found no descriptor. Raises SocketLost after several losses, DeadlineExceeded,
        and OSError of the cache's disk."""
        for most in (IN_FLIGHT, FEW, 1):
            self._run(most)
            lacking = [n for n, one in self._done.items() if isinstance(one, NoDescriptorLeft)]
            if not lacking or most == 1:
                break
            for item in lacking:
                del self._done[item]
        return self._done

    def _run(self, most: int) -> None:
        for _ in range(TRIES - 1):
            try:
                return self._run_once(most)
            except SocketLost:
                continue
        self._run_once(most)

    def _run_once(self, most: int) -> None:
        with self._session.exchange() as exchange:
            self._shared = exchange.shared
            try:
                Pipeline(exchange, self._take, most).run(self._opens())
            finally:
                for item in [*self._open]:
                    self._close(item)

    def _opens(self) -> Iterator[tuple[int, m.Message]]:
        for item, wanted in self._wanted.items():
            if item not in self._done:
                inode = wanted.inode
                yield item, m.Open(self._namespace, inode.ino, True, False, inode.nonce)

    def _take(self, item: int, reply: Reply) -> m.Message | None:
        try:
            if item in self._open:
                return self._ensured(item, checked(reply, m.Ensured), reply.take())
            return self._opened(item, checked(reply, m.Opened), reply)
        except (CacheFSError, OSError) as err:
            self._end(item, err)
            return None

    def _opened(self, item: int, opened: m.Opened, reply: Reply) -> m.Message | None:
        wanted = self._wanted[item]
        read = self._open[item] = _PartialRead(reply.take(), wanted.start)
        read.handle, reply.handle = reply.handle, 0
        if opened.size != wanted.inode.size:
            raise Stale("the file has another size than its name had")
        if opened.complete and (read.owner is not None or not opened.size):
            read.take(read.owner, wanted.start, wanted.stop, 0)
        return self._next(item, read)

    def _ensured(self, item: int, reply: m.Ensured, owner: OwnedFd | None) -> m.Message | None:
        read, stop = self._open[item], self._wanted[item].stop
        end = min(reply.end, stop)
        if end <= read.position:
            raise ProtocolError(f"the server granted nothing at {read.position}")
        if reply.data:
            read.add(reply.data[: end - read.position])
        elif reply.segment and owner is not None:
            with owner:  # a reader that keeps no segment takes no room while it waits
                read.take(owner, read.position, end, reply.base)
        else:
            read.take(read.owner, read.position, end, 0)
        return self._next(item, read)

    def _next(self, item: int, read: _PartialRead) -> m.Message | None:
        """Returns the request for what is still missing; None, and ends the item, if nothing is."""
        missing = self._wanted[item].stop - read.position
        if missing > 0:
            return m.Ensure(read.handle, read.position, min(missing, ASK_BYTES), False, True)
        self._end(item, read.data())
        return None

    def _end(self, item: int, result: bytes | CacheFSError | OSError) -> None:
        self._done[item] = result
        if item in self._open:
            self._close(item)

    def _close(self, item: int) -> None:
        read = self._open[item]
        if read.owner is not None:
            read.owner.close()
        if read.handle:
            self._shared.post(m.Release(read.handle))
        del self._open[item]


class _PartialRead:
    """A file that the server opened, and the bytes of the range that were read so far."""

    def __init__(self, owner: OwnedFd | None, position: int) -> None:
        self.handle = 0  # none must be released
        self.owner = owner
        self.position = position
        self._parts: list[bytes] = []

    def take(self, owner: OwnedFd | None, start: int, end: int, base: int) -> None:
        """Reads bytes [start, end) from a descriptor, in which they lie at `offset - base`."""
        if end <= start:
            return
        if owner is None:
            raise ProtocolError("the server granted bytes without a file to read them from")
        self.add(read_all(owner.fileno(), start - base, end - start))

    def add(self, data: bytes) -> None:
        """Adds the next bytes."""
        self._parts.append(data)
        self.position += len(data)

    def data(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
