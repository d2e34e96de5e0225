"""Brings small files before they are opened, while files are opened in order. Owned by the loop.

Executes what `worker.prefetch.sequence` decides, for all clients of a node together. What is
brought goes into the cache as a fill does that nobody waits for: as admission, quotas and the
memory budget allow, and an open that comes before its end waits for the same fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import SMALL_FILE_BYTES, NamespaceId, Origin
from worker.cache.load_requests import Outlook
from worker.prefetch.sequence import MOST_FILES, FilesAhead, Run
from worker.runtime.tasks import Tasks

if TYPE_CHECKING:
    from cachefs.core.services import MetadataService
    from worker.cache.loading import CacheLoading

MOST_COMING_BYTES: Final = 64 << 20  # at a time, and
FEW: Final = 32  # files at least, where they are large
MOST_UNREAD_BYTES: Final = 256 << 20
UNREAD_SHARE: Final = 8  # at most one part in so many of the cache waits to be read
AT_ONCE: Final = 16  # then other callbacks of the loop get their turn
_HEX = slice(0, 32)  # of a content's name: its namespace
_INO = slice(32, 48)


class Ahead:
    """`service` gives the namespace of an id. Raises nothing: what cannot be brought is not."""

    def __init__(
        self,
        cache: CacheLoading,
        service: Callable[[NamespaceId], MetadataService],
        most_files: int = MOST_FILES,
    ) -> None:
        """`most_files`: of a run; 0: nothing is ever brought."""
        self._cache = cache
        self._service = service
        self._most_files = most_files
        self._states: dict[str, FilesAhead] = {}  # by namespace, as names begin
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._asking = 0
        self._coming = 0
        self._coming_bytes = 0
        self._is_called = False
        self.files = 0  # brought so far

    def opened(self, origin: Origin) -> None:
        """A small file was opened of which not all was cached."""
        if not self._most_files:
            return
        namespace = origin.content.namespace.hex()
        state = self._states.get(namespace)
        if state is None:
            state = self._states[namespace] = FilesAhead(self._most_files)
        state.opened(origin.content.ino, _directory(origin))
        self._go_on()

    def used(self, names: Sequence[str]) -> None:
        """Clients opened these published files."""
        for name in names:
            state = self._states.get(name[_HEX])
            if state is not None and len(state):
                with contextlib.suppress(ValueError):  # it is no name
                    state.used(int(name[_INO], 16))
        self._go_on()

    async def close(self) -> None:
        """Nothing more is begun. Idempotent."""
        self._is_called = True
        self._states.clear()
        await self._tasks.close()

    # ---- bringing ----

    def _go_on(self) -> None:
        """Soon, and once for what happens at the same time."""
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._bring)

    def _bring(self) -> None:
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

    def _look(self, namespace: NamespaceId, state: FilesAhead, run: Run, ino: int) -> None:
        try:
            origin = self._service(namespace).locate_nowait(ino)
        except CacheFSError:
            return state.was_none(run)
        if origin is not None:
            return self._begin(state, run, origin)
        self._asking += 1
        self._tasks.start(self._ask(namespace, state, run, ino))

    async def _ask(self, namespace: NamespaceId, state: FilesAhead, run: Run, ino: int) -> None:
        """Of a file that this node has to ask its master about."""
        try:
            origin = await self._service(namespace).locate(ino)
        except CacheFSError:
            state.was_none(run)
        else:
            self._begin(state, run, origin)
        finally:
            self._asking -= 1
            self._go_on()

    def _list_next(self, namespace: NamespaceId, state: FilesAhead, run: Run) -> None:
        """The names of the next directory are here when they are asked for."""

        async def hint() -> None:
            with contextlib.suppress(CacheFSError):
                await self._service(namespace).list_next(run.at)
                state.listed(run)
                self._go_on()

        self._tasks.start(hint())

    def _begin(self, state: FilesAhead, run: Run, origin: Origin) -> None:
        ino = origin.content.ino
        if not state.goes_on(run, ino, _directory(origin)):
            return None
        if not 0 < origin.size <= SMALL_FILE_BYTES:
            return state.was_none(run)
        ended = functools.partial(self._ended, state, run, origin.size)
        outlook = self._cache.bring_ahead(origin, ended)
        if outlook is Outlook.HERE:
            return state.was_here(run)
        if outlook is Outlook.REFUSED:
            return state.drop(run)
        state.begun(run, ino, origin.size)
        self._coming += 1
        self._coming_bytes += origin.size
        self.files += 1

    def _ended(self, state: FilesAhead, run: Run, size_bytes: int, is_here: bool) -> None:
        self._coming -= 1
        self._coming_bytes -= size_bytes
        if not is_here:
            state.drop(run)
        self._go_on()


def _directory(origin: Origin) -> bytes:
    return origin.path.rpartition(b"/")[0]
