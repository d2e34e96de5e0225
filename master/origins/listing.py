"""A listing of a directory in flight, and the reply about a name of it: what is newer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from cachefs.core.errors import CacheFSError, Throttled
from connectors.base import Entry
from master.state.merge import Action, Change
from master.state.records import Stored
from master.tree import Mount

MAX_OVERTAKEN: Final = 100_000  # names


class Listing:
    """The progress of one directory's listing: its waiters read it, the event loop updates it."""

    def __init__(self, directory: int, mount: Mount, started_at: float) -> None:
        self.directory = directory
        self.mount = mount
        self.started_at = started_at  # wall time
        self.began = asyncio.get_running_loop().time()
        self.safe_below: bytes | None = b""  # names with smaller order keys are in the store
        self.error: CacheFSError | None = None
        self.done = False
        self.empty = False  # True once the listing ended without a name
        self.overtaken: set[bytes] = set()  # only the store's writer changes it
        self._moved = asyncio.Event()

    def passed(self, name: bytes) -> bool:
        """Returns whether the store already holds the listing's result for `name`."""
        return self.safe_below is None or name + b"/" < self.safe_below

    def overtake(self, name: bytes, stored: Stored | None, changes: Sequence[Change]) -> None:
        """Makes the listing skip a name, about which a later request has a reply in the store.
        `merge.is_newer` protects a name that is there and whose inode has not changed. Called by
        the writer of the store."""
        same = all(change.action is Action.UPDATE for change in changes)
        is_protected = stored is not None and same and stored.checked_at > self.started_at
        if is_protected or self.passed(name):
            return
        if len(self.overtaken) >= MAX_OVERTAKEN:
            self.overtaken = {one for one in self.overtaken if not self.passed(one)}
        if len(self.overtaken) <= MAX_OVERTAKEN:  # else `skipped` ends the listing
            self.overtaken.add(name)

    def skipped(self) -> frozenset[bytes]:
        """Returns the names that the listing skips. Called by the writer of the store. Raises
        Throttled if there are too many: the listing then ends without them."""
        if len(self.overtaken) > MAX_OVERTAKEN:
            raise Throttled("too many names of the directory changed while it was listed")
        return frozenset(self.overtaken)

    async def progress(self, timeout_s: float) -> bool:
        """Waits until the frontier moves or the listing ends; returns False after the timeout."""
        if self.done:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    def advance(self, safe_below: bytes) -> None:
        self.safe_below = safe_below
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def finish(self, error: CacheFSError | None) -> None:
        self.done, self.error = True, error
        if error is None:
            self.safe_below = None
        self._moved.set()


class StatReply(NamedTuple):
    """An origin's reply about a name. `marks`: of unchecked names, as the request began. `older`:
    the listing that was in flight then. `is_outdated`: a listing began after the request."""

    entry: Entry | None
    asked_at: float
    marks: int
    older: Listing | None
    is_outdated: bool
