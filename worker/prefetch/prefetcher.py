"""The prefetch of small files while a node's clients open files in order. Owned by the loop.

Executes the decisions of `worker.prefetch.open_runs`, for all clients of a node together. A
prefetched file is filled within admission, quotas and the memory budget. An open during the fill
waits for the same fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import SMALL_FILE_BYTES, NamespaceId, Origin
from worker.cache.load_requests import PrefetchResult
from worker.prefetch.open_runs import MOST_FILES, OpenRun, OpenRuns
from worker.runtime.tasks import Tasks

if TYPE_CHECKING:
    from cachefs.core.services import MetadataService
    from worker.cache.loading import CacheLoading

MOST_COMING_BYTES: Final = 64 << 20  # in flight, for more than `FEW` files
FEW: Final = 32  # files in flight that are not limited in bytes
MOST_UNREAD_BYTES: Final = 256 << 20
UNREAD_SHARE: Final = 8  # unread prefetched bytes use at most 1/8 of the cache
AT_ONCE: Final = 16  # files per turn of the loop: other callbacks must not wait
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
        """`most_files`: the most files prefetched beyond a run's last open; 0 disables prefetch."""
        self._cache = cache
        self._service = service
        self._most_files = most_files
        self._states: dict[str, OpenRuns] = {}  # by namespace, as in contents' names
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._asking = 0
        self._coming = 0
        self._coming_bytes = 0
        self._is_called = False
        self.files = 0  # prefetched since the start

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

    def used(self, names: Sequence[str]) -> None:
        """Records that clients opened these published files."""
        for name in names:
            state = self._states.get(name[_HEX])
            if state is not None and len(state):
                with contextlib.suppress(ValueError):  # not a content's name
                    state.used(int(name[_INO], 16))
        self._go_on()

    async def close(self) -> None:
        """Ends prefetching; starts no more files. Idempotent."""
        self._is_called = True
        self._states.clear()
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
        most_coming = self._coming + self._cache.places_ahead()
        begun = 0
        for name, state in self._states.items():
            namespace = NamespaceId(bytes.fromhex(name))
            for run in state.to_list():
                self._list_next(namespace, state, run)
            while self._has_place(most_coming) and state.unread_bytes < most_bytes:
                found = state.next()
                if found is None:
                    break
                self._look(namespace, state, *found)
                begun += 1
                if begun >= AT_ONCE:
                    return self._go_on()

    def _has_place(self, most_coming: int) -> bool:
        count = self._coming + self._asking
        return count < most_coming and (count < FEW or self._coming_bytes < MOST_COMING_BYTES)

    def _look(self, namespace: NamespaceId, state: OpenRuns, run: OpenRun, ino: int) -> None:
        try:
            origin = self._service(namespace).locate_nowait(ino)
        except CacheFSError:
            return state.record_not_small(run)
        if origin is not None:
            return self._begin(state, run, origin)
        self._asking += 1
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
            self._asking -= 1
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
        if outlook is PrefetchResult.HERE:
            return state.record_cached(run)
        if outlook is PrefetchResult.REFUSED:
            return state.drop(run)
        state.begun(run, ino, origin.size)
        self._coming += 1
        self._coming_bytes += origin.size
        self.files += 1

    def _ended(self, state: OpenRuns, run: OpenRun, size_bytes: int, is_here: bool) -> None:
        self._coming -= 1
        self._coming_bytes -= size_bytes
        if not is_here:
            state.drop(run)
        self._go_on()


def _directory(origin: Origin) -> bytes:
    return origin.path.rpartition(b"/")[0]
