"""A run of a store: from its start to the end of the process that has it open.

The store may be restored to an earlier state (see `master.state.numbers`). Clients and workers
distinguish the runs by a random number, which every greeting and every reply about events carries.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final

from cachefs.core.model import NamespaceId
from master.state.records import EVERYTHING
from master.store.base import Store
from master.store.transaction import Transaction, initialise, transact

log = logging.getLogger(__name__)

RUN_BITS: Final = 63


class StoreRun:
    """The run that begins with this object. `number` is never 0. `set_back` calls `on_set_back` in
    the event loop."""

    def __init__(self, store: Store, namespace: NamespaceId, now_s: float) -> None:
        """Initialises an empty store for `namespace`; `now_s` is the wall time. Blocks until the
        commit. Raises BadConfig, NoSpace."""
        self._store = store
        self.meta = initialise(store, namespace, now_s)
        self.number = _draw()
        self.on_set_back: Callable[[], None] = lambda: None

    async def set_back(self) -> None:
        """Skips inode numbers and starts another run. The master calls it when a worker knows a
        later state of the store, although the store was not restarted (the machine and its memory
        were restored). Raises the store's errors."""
        log.warning("the store is an earlier one than workers know: numbers of inodes jump")
        await asyncio.wrap_future(transact(self._store, _leave_numbers_out))
        self.number = _draw()
        self.on_set_back()


def _leave_numbers_out(transaction: Transaction) -> None:
    transaction.skip_inos()
    transaction.announce(*EVERYTHING)


def _draw() -> int:
    return secrets.randbits(RUN_BITS) or 1
