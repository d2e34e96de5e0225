"""The prefetch of announced orders. Owned by the loop.

Executes the decisions of `worker.prefetch.announced_order`. A file that admission refuses is
fetched into the transit window (`worker.fill.transit`) and stays there until it was opened.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from cachefs.core.errors import BadConfig, CacheFSError
from cachefs.core.model import SMALL_FILE_BYTES, NamespaceId, Origin
from cachefs.core.order_messages import AnnounceFunction, AnnounceOrder
from worker.cache.load_requests import PrefetchResult
from worker.prefetch.announced_order import AnnouncedOrder
from worker.prefetch.in_flight import AT_ONCE, InFlight
from worker.prefetch.ino_table import InoTable
from worker.prefetch.order_book import OrderBook, OrderId
from worker.prefetch.order_entries import FunctionEntries

if TYPE_CHECKING:
    from cachefs.core.services import MetadataService
    from worker.cache.loading import CacheLoading
    from worker.runtime.tasks import Tasks


class OrderPrefetcher:
    """See the module. `go_on` schedules the next `request`."""

    def __init__(
        self,
        cache: CacheLoading,
        service: Callable[[NamespaceId], MetadataService],
        flight: InFlight,
        tasks: Tasks,
        go_on: Callable[[], None],
    ) -> None:
        self.book = OrderBook()
        self.files = 0  # prefetched since the start
        self._cache = cache
        self._service = service
        self._flight = flight
        self._tasks = tasks
        self._go_on = go_on

    def add_piece(self, session: Hashable, piece: AnnounceOrder, now: float) -> None:
        """Begins an order that is a list, or adds to it. Raises BadConfig."""
        self.book.add_piece(session, piece, now)
        self._go_on()

    def put_function(
        self, session: Hashable, body: AnnounceFunction, fd: int | None, now: float
    ) -> None:
        """Adds an order that is a function; owns the descriptor if this succeeds. Raises
        BadConfig."""
        body.order.check()
        body.share.check()
        if fd is None:
            raise BadConfig("no descriptor of the manifest's ino table was sent")
        table = InoTable(fd, body.namespace, body.order.n)
        entries = FunctionEntries(body.order, body.share, table.read)
        id = OrderId(session, body.namespace, body.name)
        self.book.put_function(id, entries, body.batch_span, now, table.close)
        self._go_on()

    def opened(self, session: Hashable, namespace: NamespaceId, ino: int, now: float) -> bool:
        """Records an open. Returns whether an order expected it."""
        is_expected = self.book.opened(session, namespace, ino, now)
        if is_expected:
            self._go_on()
        return is_expected

    def request(self, most_coming: int, most_unread_bytes: int) -> int:
        """Starts prefetches, one of each order in turn, as far as there is room. Returns how many
        files were looked at."""
        turns = collections.deque(self.book.live())
        count = 0
        while turns and count < AT_ONCE and self._flight.has_place(most_coming):
            namespace, order = turns.popleft()
            found = order.next() if order.unread_bytes < most_unread_bytes else None
            if found is None:
                continue
            count += 1
            if self._look(namespace, order, *found):
                turns.append((namespace, order))
        return count

    def _look(self, namespace: NamespaceId, order: AnnouncedOrder, place: int, ino: int) -> bool:
        """Starts the prefetch of a file. Returns False if there is no room for it now."""
        try:
            origin = self._service(namespace).locate_nowait(ino)
        except CacheFSError:  # it was removed, or is not a file
            return True
        if origin is not None:
            return self._begin(order, place, origin)
        self._flight.asking += 1
        self._tasks.start(self._ask(namespace, order, place, ino))
        return True

    async def _ask(
        self, namespace: NamespaceId, order: AnnouncedOrder, place: int, ino: int
    ) -> None:
        """Locates a file that only the master knows, then starts its prefetch."""
        try:
            origin = await self._service(namespace).locate(ino)
        except CacheFSError:
            return
        else:
            self._begin(order, place, origin)
        finally:
            self._flight.asking -= 1
            self._go_on()

    def _begin(self, order: AnnouncedOrder, place: int, origin: Origin) -> bool:
        if order.is_over or not 0 < origin.size <= SMALL_FILE_BYTES:
            return True
        ended = functools.partial(self._ended, order, place, origin.size)
        ticket = functools.partial(self._lost, order, place)
        release = functools.partial(self._cache.withdraw, origin.content.key, ticket)
        result = self._cache.bring_ahead(origin, ended, ticket)
        if result is PrefetchResult.REFUSED:
            order.refused(place)
            return False
        if result is PrefetchResult.HERE:
            order.was_cached(place)
        elif result is PrefetchResult.IN_TRANSIT:
            order.begun(place, 0, release)
            order.arrived(place)
        else:
            self._flight.began(origin.size)
            self.files += 1
            order.begun(place, origin.size, release)
        return True

    def _ended(self, order: AnnouncedOrder, place: int, size_bytes: int, is_here: bool) -> None:
        self._flight.ended(size_bytes)
        if is_here:
            order.arrived(place)
        else:
            order.lost(place)
        self._go_on()

    def _lost(self, order: AnnouncedOrder, place: int) -> None:
        order.lost(place)
        self._go_on()
