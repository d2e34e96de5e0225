"""The prefetch of small files while a node's clients open files in order. Owned by the loop.

Executes the decisions of `worker.prefetch.open_runs`, for all clients of a node together, and of
announced orders (`worker.prefetch.order_prefetcher`), which come first. A prefetched file is filled
within admission, quotas and the memory budget. An open during the fill waits for the same fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import SMALL_FILE_BYTES, NamespaceId, Origin
from worker.cache.load_requests import PrefetchResult
from worker.prefetch.in_flight import AT_ONCE, InFlight
from worker.prefetch.open_runs import MOST_FILES, OpenRun, OpenRuns
from worker.prefetch.order_prefetcher import OrderPrefetcher
from worker.runtime.tasks import Tasks

if TYPE_CHECKING:
    from cachefs.core.services import MetadataService
    from worker.cache.loading import CacheLoading

MOST_UNREAD_BYTES: Final = 256 << 20
UNREAD_SHARE: Final = 8  # unread prefetched bytes use at most 1/8 of the cache
_HEX = slice(0, 32)  # of a content's name: its namespace
_INO = slice(32, 48)


class Prefetcher:
    """The prefetcher of a node. Raises nothing. `service` returns the service of a namespace."""

    def __init__(
        self,
        cache: CacheLoading,
        service: Callable[[NamespaceId], MetadataService],
        most_files: int = MOST_FILES,
    ) -> None:
        """`most_files`: the most files prefetched beyond a run's last open; 0: only announced
        orders are prefetched."""
        self._cache = cache
        self._service = service
        self._most_files = most_files
        self._states: dict[str, OpenRuns] = {}  # by namespace, as in contents' names
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._flight = InFlight(cache)
        self.orders = OrderPrefetcher(cache, service, self._flight, self._tasks, self._go_on)
        self._is_called = False
        self._files = 0

    @property
    def files(self) -> int:
        """The number of files prefetched since the start."""
        return self._files + self.orders.files

    def opened(self, origin: Origin) -> None:
        """Records the open of a small file that was not completely cached."""
        if not self._most_files:
            return
        namespace = origin.content.namespace.hex()
        state = self._states.get(namespace)
        if state is None:
            state = self._states[namespace] = OpenRuns(self._most_files)
        state.opened(origin.content.ino, _directory(origin))
        self._go_on()

    def announced(self, session: Hashable, namespace: NamespaceId, ino: int) -> bool:
        """Records the open of a file. Returns whether an announced order expected it: it starts no
        run then."""
        if not len(self.orders.book):
            return False
        return self.orders.opened(session, namespace, ino, time.monotonic())

    def used(self, names: Sequence[str], session: Hashable = None) -> None:
        """Records that clients opened these published files."""
        has_orders, now = len(self.orders.book) > 0, time.monotonic()
        for name in names:
            state = self._states.get(name[_HEX])
            with contextlib.suppress(ValueError):  # not a content's name
                if has_orders and self._used_in_order(session, name, now):
                    continue
                if state is not None and len(state):
                    state.used(int(name[_INO], 16))
        self._go_on()

    def _used_in_order(self, session: Hashable, name: str, now: float) -> bool:
        namespace = NamespaceId(bytes.fromhex(name[_HEX]))
        return self.orders.opened(session, namespace, int(name[_INO], 16), now)

    def look(self) -> None:
        """Ends idle orders and continues those that found no room. Called a few times a second."""
        if len(self.orders.book):
            self.orders.book.expire(time.monotonic())
            self._go_on()

    async def close(self) -> None:
        """Ends prefetching; starts no more files. Idempotent."""
        self._is_called = True
        self._states.clear()
        self.orders.book.close()
        await self._tasks.close()

    # ---- starts and ends of fills ----

    def _go_on(self) -> None:
        """Schedules one `_prefetch` in the next turn of the loop."""
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._prefetch)

    def _prefetch(self) -> None:
        self._is_called = False
        most_bytes = min(MOST_UNREAD_BYTES, self._cache.capacity() // UNREAD_SHARE)
        most_coming = self._flight.limit()
        begun = self.orders.request(most_coming, most_bytes)
        for name, state in self._states.items():
            namespace = NamespaceId(bytes.fromhex(name))
            for run in state.to_list():
                self._list_next(namespace, state, run)
            while begun < AT_ONCE and state.unread_bytes < most_bytes:
                found = state.next() if self._flight.has_place(most_coming) else None
                if found is None:
                    break
                self._look(namespace, state, *found)
                begun += 1
        if begun >= AT_ONCE:
            self._go_on()

    def _look(self, namespace: NamespaceId, state: OpenRuns, run: OpenRun, ino: int) -> None:
        try:
            origin = self._service(namespace).locate_nowait(ino)
        except CacheFSError:
            return state.record_not_small(run)
        if origin is not None:
            return self._begin(state, run, origin)
        self._flight.asking += 1
        self._tasks.start(self._ask(namespace, state, run, ino))

    async def _ask(self, namespace: NamespaceId, state: OpenRuns, run: OpenRun, ino: int) -> None:
        """Locates a file that only the master knows, then starts its fill."""
        try:
            origin = await self._service(namespace).locate(ino)
        except CacheFSError:
            state.record_not_small(run)
        else:
            self._begin(state, run, origin)
        finally:
            self._flight.asking -= 1
            self._go_on()

    def _list_next(self, namespace: NamespaceId, state: OpenRuns, run: OpenRun) -> None:
        """Lists the next directory ahead of the reader."""

        async def hint() -> None:
            with contextlib.suppress(CacheFSError):
                await self._service(namespace).list_next(run.at)
                state.listed(run)
                self._go_on()

        self._tasks.start(hint())

    def _begin(self, state: OpenRuns, run: OpenRun, origin: Origin) -> None:
        ino = origin.content.ino
        if not state.may_prefetch(run, ino, _directory(origin)):
            return None
        if not 0 < origin.size <= SMALL_FILE_BYTES:
            return state.record_not_small(run)
        ended = functools.partial(self._ended, state, run, origin.size)
        outlook = self._cache.bring_ahead(origin, ended)
        if outlook is PrefetchResult.REFUSED:
            return state.drop(run)
        if outlook is not PrefetchResult.BEGUN:
            return state.record_cached(run)
        state.begun(run, ino, origin.size)
        self._flight.began(origin.size)
        self._files += 1

    def _ended(self, state: OpenRuns, run: OpenRun, size_bytes: int, is_here: bool) -> None:
        self._flight.ended(size_bytes)
        if not is_here:
            state.drop(run)
        self._go_on()


def _directory(origin: Origin) -> bytes:
    return origin.path.rpartition(b"/")[0]
