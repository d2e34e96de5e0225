"""The source of fills in a cluster: own blocks from their former owners, other blocks from their
owners, and both from the origin if no peer sends them. See `worker.peers.source_selection` for the
order.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, Final

from cachefs.core import cluster as c
from cachefs.core.errors import CacheFSError, DeadlineExceeded, Interrupted
from cachefs.core.model import PAGE_BYTES, Origin
from cachefs.core.pages import page_span, range_bytes
from cachefs.core.placement import Member, View, all_members, block_of
from cachefs.network.checked_connect import ListenerCheck, accept_any_listener
from connectors.deadline import bounded, futile_when
from connectors.fetch.request import RangeRequest
from connectors.reach import Reach, no_requests
from worker.fill.clipped import clipped
from worker.fill.source import NO_EPOCH, Purpose, Source, SourceBody
from worker.peers.connections import Connections
from worker.peers.fetch import PeerFetch, Shared
from worker.peers.ownership_map import OwnershipMap
from worker.peers.page_request import PageRequest, WrongPage
from worker.peers.source_selection import TIMES, BodyFailed, Candidate, Event, Tick, Times

log = logging.getLogger(__name__)

KEPT_BUFFERS: Final = 16
KEPT_HOLDERS: Final = 10_000
REFRESH_S: Final = 3.0


class Buffers:
    """A pool of page buffers; the last one returned is reused first. Thread-safe."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(PAGE_BYTES)

    def give(self, buffer: bytearray) -> None:
        if len(self._free) < KEPT_BUFFERS:
            self._free.append(buffer)


class Holders:
    """The peers that offered blocks, and so have them. Bounded, thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_block: collections.OrderedDict[tuple[bytes, int], Member] = (
            collections.OrderedDict()
        )

    def add(self, key: bytes, block: int, member: Member) -> None:
        with self._lock:
            self._by_block[key, block] = member
            self._by_block.move_to_end((key, block))
            if len(self._by_block) > KEPT_HOLDERS:
                self._by_block.popitem(last=False)

    def of(self, key: bytes, block: int) -> list[Member]:
        member = self._by_block.get((key, block))
        return [member] if member is not None else []


class ClusterSource:
    """The `worker.fill.source.Source` of a node in a cluster. `refresh` updates the ring to the
    newest view. It is called in threads and raises the typed errors (see `in_loop`). `reach`
    returns the way from this node to an origin; its times are of `clock`. `on_detour` is called in
    the loop with a file that peers are asked for because that way is cut: reads through peers do
    not tell this node when the way is there again (see `try_origin`)."""

    def __init__(
        self,
        ring: OwnershipMap,
        origin: Source,
        *,
        refresh: Callable[[], object] = lambda: None,
        reach: Callable[[Origin], Reach] = no_requests,
        on_detour: Callable[[Origin], object] = lambda origin: None,
        headers: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        presents_to: ListenerCheck = accept_any_listener,
        times: Times = TIMES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._origin = origin
        self._ring = ring
        self._reach = reach
        self._on_detour = on_detour
        self._holders = Holders()
        self._buffers = Buffers()
        self._shared = Shared(
            ring=ring,
            connections=Connections(times.silence_s, ssl_context, clock, presents_to),
            headers=headers or {},
            refresh=refresh,
            holders=self._holders.of,
            is_cut=lambda origin: reach(origin).is_cut(clock()),
            times=times,
            clock=clock,
        )

    # ---- `Source` ----

    def waits_for_peers(self, origin: Origin, offset: int) -> int | None:
        """See `Source`."""
        block = block_of(offset)
        if self._shared.is_cut(origin) and self._has_others(origin, block):
            self._on_detour(origin)
            return NO_EPOCH
        return self._ring.waits(origin.content.ino, block)

    def has_stand_in(self, origin: Origin, offset: int) -> bool:
        """See `Source`."""
        return self._reach(origin).is_in_doubt and self._has_others(origin, block_of(offset))

    def ask(self, origin: Origin, offset: int, size: int) -> RangeRequest | None:
        """See `Source`."""
        found = self._shared.candidates(origin, offset // PAGE_BYTES, Purpose.SERVE)
        return None if found else self._origin.ask(origin, offset, size)

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        """See `Source`."""
        first, end = page_span(offset, size)
        found = self._shared.candidates(origin, first, purpose)
        if not found and purpose is not Purpose.MIGRATE:
            return self._from_origin(origin, offset, size, purpose)
        body = PeerBody(self, self._shared, origin, (first, end), found, purpose)
        return clipped(body, origin.size, (first, end), (offset, offset + size))

    def try_origin(self, origin: Origin, limit_s: float) -> None:
        """Requests a byte of a file from the origin, whose end tells of the way to it. Blocks for
        `limit_s` at most."""
        with contextlib.suppress(CacheFSError), bounded(self._shared.clock() + limit_s):
            body = self._origin.read(origin, 0, 1)
            with contextlib.closing(body):
                next(iter(body))

    # ---- events ----

    def on_view(self, view: View) -> None:
        """Replaces the view; drops the records of peers that left or changed their address. Called
        in the loop."""
        before = {one.id: one.url for one in all_members(self._ring.view)}
        self._ring.update(view)
        same = {one.id for one in all_members(view) if before.get(one.id, one.url) == one.url}
        with self._shared.lock:
            self._shared.peers.keep(same)
        self._shared.connections.keep({one.url for one in all_members(view)})

    def add_holder(self, key: bytes, block: int, member: Member) -> None:
        """Records that a peer has pages of a block that this node owns now."""
        self._holders.add(key, block, member)

    def status(self) -> dict[str, Any]:
        """Returns plain values for operators."""
        with self._shared.lock:
            counters = self._shared.counters
            found = {name: getattr(counters, name) for name in counters.__slots__}
            peers = self._shared.peers.status(self._shared.clock())
        return {**found, "peers": peers}

    def close(self) -> None:
        """Closes idle connections; bodies in use end with their readers."""
        self._shared.connections.close()

    # ---- for bodies ----

    def from_origin(self, origin: Origin, first: int, end: int, purpose: Purpose) -> SourceBody:
        """Returns the body of the pages [first, end) from the origin."""
        size = range_bytes(origin.size, first, end)
        return self._from_origin(origin, first * PAGE_BYTES, size, purpose)

    def _from_origin(self, origin: Origin, offset: int, size: int, purpose: Purpose) -> SourceBody:
        """Returns a body from the origin. Over a way that is cut a fill does not repeat the
        request, so that it asks peers."""
        block = block_of(offset)
        if purpose is Purpose.SERVE and self._has_others(origin, block):
            with futile_when(lambda: self._shared.is_cut(origin)):
                return self._origin.read(origin, offset, size, purpose)
        return self._origin.read(origin, offset, size, purpose)

    def _has_others(self, origin: Origin, block: int) -> bool:
        return self._ring.shares(origin.content.ino, block, origin.rule.owners)

    def take_buffer(self) -> bytearray:
        return self._buffers.take()

    def give_buffer(self, buffer: bytearray) -> None:
        self._buffers.give(buffer)

    def report_corruption(self, exchange: PageRequest, origin: Origin, page: int) -> None:
        """Makes the peer verify its copy of a damaged page. Best effort: errors are ignored."""
        url = exchange.candidate.url
        log.warning("%s: page %d from peer %s is damaged", origin.content.name, page, url)
        doubt = c.encode(c.Doubt(origin.content.key, [page]))
        with contextlib.suppress(OSError):
            connection, _ = self._shared.connections.take(url, fresh=True)
            with contextlib.closing(connection):
                headers = {**self._shared.headers, "Content-Type": "application/msgpack"}
                connection.ask("POST", c.CALL_PATH, headers, doubt)
                connection.head()


class PeerBody:
    """The body of a read of one block. If a source fails, it continues with the next one, from the
    first missing page. Chunks from peers are whole, verified pages."""

    def __init__(
        self,
        source: ClusterSource,
        shared: Shared,
        origin: Origin,
        pages: tuple[int, int],
        found: list[Candidate],
        purpose: Purpose,
    ) -> None:
        self._source = source
        self._shared = shared
        self._origin = origin
        self._next, self._end = pages
        self._purpose = purpose
        self._found = found
        self._hunt: PeerFetch | None = None
        self._exchange: PageRequest | None = None
        self._origin_body: SourceBody | None = None
        self._is_closed = False
        self.from_peer = False
        self.checksum: int | None = None

    def __iter__(self) -> Iterator[memoryview]:
        buffer = self._source.take_buffer()
        try:
            yield from self._pages(memoryview(buffer))
        finally:
            self._source.give_buffer(buffer)

    def _pages(self, buffer: memoryview) -> Iterator[memoryview]:
        found = self._found
        while self._next < self._end:
            hunt = self._hunt = PeerFetch(self._shared, self._origin, found, self._purpose)
            try:
                is_of_peer = yield from self._one_answer(hunt, buffer)
            finally:
                hunt.close()
            if not is_of_peer:
                yield from self._from_origin()
                return
            if self._next < self._end:  # the peer had only some of the pages
                found = self._shared.candidates(self._origin, self._next, self._purpose)

    def _one_answer(self, hunt: PeerFetch, buffer: memoryview) -> Generator[memoryview, None, bool]:
        """Yields the pages of one complete reply, and of failed ones before it. Returns False if
        the origin is next."""
        event: Event = Tick()
        while True:
            self._check()
            exchange = hunt.find((self._next, self._end), event)
            if exchange is None:
                return False
            self._exchange = exchange
            try:
                self._check()  # a close before this line has not aborted the exchange
                yield from self._read(exchange, buffer)
                return True
            except WrongPage as err:
                self._source.report_corruption(exchange, self._origin, err.page)
                event = BodyFailed(wrong=True)
            except OSError as err:
                log.debug("%s: %s", exchange.candidate.url, err)
                event = BodyFailed()
            finally:
                self._exchange = None
                exchange.close()

    def _read(self, exchange: PageRequest, buffer: memoryview) -> Iterator[memoryview]:
        for view, checksum in exchange.pages(buffer):
            self.from_peer, self.checksum = True, checksum
            self._next += 1
            yield view
        exchange.finish()

    def _from_origin(self) -> Iterator[memoryview]:
        self._check()
        self.from_peer, self.checksum = False, None
        body = self._origin_body = self._source.from_origin(
            self._origin, self._next, self._end, self._purpose
        )
        try:
            self._check()  # a close before this line has not closed the body
            yield from body
        finally:
            body.close()

    def _check(self) -> None:
        if self._is_closed:
            raise Interrupted("the read was abandoned")

    def close(self) -> None:
        """Ends the body; a read in progress raises soon. Thread-safe. Idempotent."""
        self._is_closed = True
        if (hunt := self._hunt) is not None:
            hunt.abort()
        if (exchange := self._exchange) is not None:
            exchange.abort()
        if (body := self._origin_body) is not None:
            body.close()


def in_loop(
    loop: asyncio.AbstractEventLoop,
    work: Callable[[], Awaitable[object]],
    limit_s: float = REFRESH_S,
) -> Callable[[], None]:
    """Returns a function for threads that runs `work` in the loop and waits for it. The function
    raises what `work` raises, and DeadlineExceeded."""

    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await work()

    def call() -> None:
        try:
            asyncio.run_coroutine_threadsafe(bounded(), loop).result(2 * limit_s)
        except TimeoutError as err:
            raise DeadlineExceeded(f"no result within {limit_s:g} s") from err

    return call
