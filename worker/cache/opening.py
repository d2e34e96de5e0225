"""The open of a small file that is being filled, or was a moment ago: it waits without a task.

Owned by the loop. An opening holds its entry until its result was taken or it was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cachefs.core.errors import CacheFSError, NoSpace

if TYPE_CHECKING:
    from worker.cache.tier import Tier
    from worker.tier.entry import Entry


class Opening:
    """Calls `ready` once: every page is here, or `error` is set. Never after `cancel`. The entry is
    held for this opening already."""

    __slots__ = ("_ready", "entry", "error", "tier", "whole")

    def __init__(self, tier: Tier, entry: Entry, ready: Callable[[Opening], None]) -> None:
        self._ready: Callable[[Opening], None] | None = ready
        self.tier = tier
        self.entry = entry
        self.error: CacheFSError | None = None
        self.whole = True  # False: there is no room to have all of it at once
        if entry.inflight:
            self._wait()
        else:
            asyncio.get_running_loop().call_soon(self._wait)

    def cancel(self) -> None:
        """Stops waiting; the fill continues. Idempotent, and does nothing after `ready` was
        called."""
        if self._ready is not None:
            self._ready = None
            self.tier.opens.leave(self.entry)

    def taken(self) -> None:
        """Releases the entry: the result is no longer needed."""
        self.tier.opens.leave(self.entry)

    def _wait(self, page: asyncio.Future[None] | None = None) -> None:
        """Looks which pages are still in flight. Pages that the cache refused are in segments."""
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
