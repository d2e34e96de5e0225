"""The comparison of one directory with its origin, without writes; it blocks, for a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from cachefs.core.errors import Stale
from connectors.base import Page
from master.origins.lister import Watcher, listed
from master.state.merge import Batch, Pages
from master.store.base import Store
from master.store.comparison import Compared, compare
from master.store.snapshot import Names
from master.tree import Place

STORED_AT_ONCE: Final = 4000


def at_once(page: Page) -> None:
    """The pace of a preview that an operator waits for."""


class Preview:
    """The dry run of one directory. `ino` is None if the store does not have the directory. `over`
    returns whether the sync has ended; the run then raises Stale. `pace` is called after each page
    and may wait."""

    def __init__(
        self,
        store: Store,
        place: Place,
        ino: int | None,
        watcher: Watcher,
        clock: Callable[[], float],
        over: Callable[[], bool],
        computing: threading.Lock,
        *,
        may_be_absent: bool,
        pace: Callable[[Page], None] = at_once,
    ) -> None:
        """Shares the lock `computing` with all previews: several threads that compute at once
        would hold the interpreter lock and delay the event loop."""
        self._store = store
        self._place = place
        self._ino = ino
        self._watcher = watcher
        self._clock = clock
        self._over = over
        self._computing = computing
        self._may_be_absent = may_be_absent
        self._pace = pace
        self.empty = True  # the listing had no name

    def run(self) -> None:
        """Compares all pages. Raises the connector's errors, and Stale when the sync has ended."""
        pages, asked_at = Pages(), self._clock()
        scratch = self._store.scratch
        found = listed(self._place, scratch, may_be_absent=self._may_be_absent)
        with contextlib.closing(found):
            for page in found:
                if self._over():
                    raise Stale("the comparison was ended")
                self.empty = self.empty and not (page.entries or page.hidden)
                self._compare(pages.add(page.entries, page.hidden), asked_at)
                self._pace(page)
        self._compare(pages.end(), asked_at)

    def _compare(self, batch: Batch, asked_at: float) -> None:
        if self._ino is None:
            return self._watcher.saw(Compared((), batch.entries, batch.late, batch.upto))
        while True:
            with self._computing, self._store.snapshot() as reader:
                names, now = Names(reader), self._clock()
                compared = compare(names, self._ino, batch, asked_at, now, STORED_AT_ONCE)
            self._watcher.saw(compared)
            if not compared.cut:
                return
            assert compared.upto is not None, "what is cut ends somewhere"
            batch = batch.rest(compared.upto)
