"""One run of a store: from its start to the end of the process that has it open.

The store may be an earlier state of itself (see `master.state.numbers`). Nodes tell the runs of a
store apart by a random number, which every greeting and every answer about events carries.
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
    """Begins with the object. `number` is never 0. `on_set_back` is called in the event loop after
    the store was found to be an earlier one."""

    def __init__(self, store: Store, namespace: NamespaceId, now_s: float) -> None:
        """Makes an empty store one of `namespace`; `now_s` is the wall time. Blocks for a commit.
        Raises BadConfig, NoSpace."""
        self._store = store
        self.meta = initialise(store, namespace, now_s)
        self.number = _draw()
        self.on_set_back: Callable[[], None] = lambda: None

    async def set_back(self) -> None:
        """A worker knows a later state of the store than this one, although the store was not
        started since (the machine was set back with its memory): inode numbers jump, and nodes
        hear of another run. Raises what the store does."""
        log.warning("the store is an earlier one than workers know: numbers of inodes jump")
        await asyncio.wrap_future(transact(self._store, _leave_numbers_out))
        self.number = _draw()
        self.on_set_back()


def _leave_numbers_out(transaction: Transaction) -> None:
    transaction.skip_inos()
    transaction.announce(*EVERYTHING)


def _draw() -> int:
    return secrets.randbits(RUN_BITS) or 1
