"""The wait for a store that does not commit in time, because its disk hangs, is frozen or is full.

Then a reply of the origin that changes nothing is answered from the store: the write would only
record the time of the check. A reply that changes a name is never shown before it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from cachefs.core.errors import NoSpace, Unavailable
from cachefs.core.model import Kind
from connectors.base import Entry, order_key
from master.state.records import Stored
from master.store.base import Store
from master.store.comparison import changes_of, compare_name
from master.store.snapshot import Names

PATIENCE_S: Final = 3.0  # for one commit

Confirm = Callable[[Names], Stored | None]


def is_late(store: Store) -> bool:
    """Returns whether the present commit takes too long."""
    return store.waits_s > PATIENCE_S


async def written(
    store: Store, write: Callable[[], asyncio.Task[Stored | None]], confirm: Confirm
) -> Stored | None:
    """Returns the result of a write, or after `PATIENCE_S` what `confirm` returns, unless that is
    None. While the store is late, starts no write whose result is confirmed. Raises the error of
    the write; a cancellation does not end it."""
    if is_late(store) and (stored := _confirmed(store, confirm)) is not None:
        return stored
    task = write()
    await asyncio.wait([task], timeout=PATIENCE_S)
    if task.done() and not isinstance(task.exception(), NoSpace | Unavailable):
        return task.result()
    if (stored := _confirmed(store, confirm)) is not None:
        return stored
    return await asyncio.shield(task)


def _confirmed(store: Store, confirm: Confirm) -> Stored | None:
    with store.snapshot() as reader:
        return confirm(Names(reader))


def unchanged_name(
    names: Names, parent: int, name: bytes, entry: Entry | None, checked_at: float
) -> Stored | None:
    """Returns the stored name if the origin's reply about it changes nothing. It was checked at
    `checked_at`."""
    held = names.is_held(parent, order_key(name, True))
    if entry is None or held or compare_name(names, parent, name, entry):
        return None
    stored = names.dentry(parent, order_key(name, entry.fingerprint.kind is Kind.DIRECTORY))
    return _checked(stored, checked_at)


def unchanged_root(names: Names, root: int, entry: Entry, checked_at: float) -> Stored | None:
    """As `unchanged_name`, for the root of a source."""
    stored = names.inode(root)
    return None if changes_of(b"", entry, stored) else _checked(stored, checked_at)


def _checked(stored: Stored | None, checked_at: float) -> Stored | None:
    if stored is None:
        return None
    return msgspec.structs.replace(stored, checked_at=max(stored.checked_at, checked_at))
