"""The open of a small file that is fetched for it, or was just now: waits without a task.

Owned by the loop. An opening holds its entry until its result was taken or it was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cachefs.core.errors import CacheFSError, NoSpace, Stale
from cachefs.core.model import Origin
from worker.tier.catalog import Catalog
from worker.tier.entry import Entry


def check_nonce(origin: Origin, nonce: int) -> None:
    """Raises Stale where the caller means a content of another nonce: the inode number was given to
    another file, by a store that was an earlier one. A caller that gives 0 does not say."""
    if nonce and nonce != origin.content.nonce:
        raise Stale(f"inode {origin.content.ino} is another file")


class Opening:
    """`ready` is called once: every page is here, or an error says why not. Never after `cancel`.
    The entry is held for this opening already."""

    __slots__ = ("_catalog", "_ready", "entry", "error", "number", "whole")

    def __init__(self, catalog: Catalog, entry: Entry, ready: Callable[[Opening], None]) -> None:
        self._catalog = catalog
        self._ready: Callable[[Opening], None] | None = ready
        self.entry = entry
        self.number = 0  # of the worker among those of a node, see `worker.cache.cache`
        self.error: CacheFSError | None = None
        self.whole = True  # False: there is no room to have all of it at once
        if entry.inflight:
            self._wait()
        else:
            asyncio.get_running_loop().call_soon(self._wait)

    def cancel(self) -> None:
        """Nobody waits any more; the fill goes on. Idempotent, and nothing after the result was
        taken."""
        if self._ready is not None:
            self._ready = None
            self._catalog.leave(self.entry)

    def taken(self) -> None:
        """The result is no longer needed."""
        self._catalog.leave(self.entry)

    def _wait(self, page: asyncio.Future[None] | None = None) -> None:
        """Looks what is still under way. Pages that the cache refused are in segments then."""
        ready = self._ready
        if ready is None:
            return
        entry = self.entry
        error = page.exception() if page is not None else None
        if error is None and entry.inflight:
            return next(iter(entry.inflight.values())).add_done_callback(self._wait)
        if error is None and not entry.pages.complete:
            error = entry.failed
        assert error is None or isinstance(error, CacheFSError)
        self.whole = not isinstance(error, NoSpace)
        self.error = error if self.whole else None
        self._ready = None
        ready(self)
