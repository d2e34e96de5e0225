"""The comparison of an origin's listing with the stored names. It only reads, in one snapshot or in
the transaction that writes the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from cachefs.core.model import Kind
from connectors.base import Entry, order_key
from master.state import merge
from master.state.merge import Action, Batch, Change
from master.state.records import Stored, name_of
from master.store.snapshot import Names


class Compared(NamedTuple):
    """The comparison of a part of a directory's listing. `entries` and `late` (files from before
    the part, decided now) are the origin's entries without the roots of sources."""

    changes: Sequence[Change] = ()
    entries: Sequence[tuple[bytes, Entry]] = ()
    late: Sequence[Entry] = ()
    upto: bytes | None = None  # all smaller order keys are compared; None: the whole directory
    cut: bool = False  # the rest of the batch, behind `upto`, is not compared yet
    was_listed: bool = False  # all names of the directory were known before


def compare(
    names: Names, parent: int, batch: Batch, asked_at: float, now: float, limit: int
) -> Compared:
    """Compares a batch of a listing that began at `asked_at` with at most `limit` stored names."""
    batch = _without_held(names, parent, batch)
    below = None if batch.upto is None else batch.upto + b"\0"
    stored = names.children(parent, batch.after, below, limit)
    cut = stored[-1][0] if len(stored) == limit else None
    entries = batch.entries if cut is None else batch.part(cut)
    changes = merge.plan(stored, entries, batch.waiting, asked_at, now)
    changes += _late_changes(names, parent, batch, asked_at, now)
    upto = batch.upto if cut is None else cut
    was_listed = names.directory(parent) is not None
    return Compared(changes, entries, batch.late, upto, cut is not None, was_listed)


def _without_held(names: Names, parent: int, batch: Batch) -> Batch:
    """Returns the batch without held names, except the attributes of directories above a root.
    Adds the held keys to `waiting`, which keeps their stored names."""
    held = names.held_below(parent)
    if not held:
        return batch
    roots = {name_of(key) for key, ino in held.items() if names.mount(ino) is not None}
    held_names = {name_of(key) for key in held}
    return msgspec.structs.replace(
        batch,
        entries=[
            (key, entry)
            for key, entry in batch.entries
            if entry.name not in held_names or (key in held and entry.name not in roots)
        ],
        late=[entry for entry in batch.late if entry.name not in held_names],
        waiting=batch.waiting | held.keys(),
    )


def _late_changes(
    names: Names, parent: int, batch: Batch, asked_at: float, now: float
) -> list[Change]:
    """Returns the changes of names from before the range."""
    changes = []
    for name in batch.dropped:
        old = names.dentry(parent, name)
        if old is not None and not merge.is_newer(old, asked_at, now):
            changes.append(Change(Action.REMOVE, name, None, old))
    for entry in batch.late:
        twin = names.dentry(parent, order_key(entry.name, True))
        if twin is None or not merge.is_newer(twin, asked_at, now):
            old = names.dentry(parent, entry.name)
            changes += merge.plan(
                [] if old is None else [(entry.name, old)],
                [(entry.name, entry)],
                frozenset(),
                asked_at,
                now,
            )
    return changes


def compare_name(names: Names, parent: int, name: bytes, entry: Entry | None) -> list[Change]:
    """Returns the changes from an origin's reply about one name that is not held (None: not
    found)."""
    right_key = None
    if entry is not None:
        right_key = order_key(name, entry.fingerprint.kind is Kind.DIRECTORY)
    known = {key: names.dentry(parent, key) for key in merge.keys_of(name)}
    changes = [
        Change(Action.REMOVE, key, None, old)
        for key, old in known.items()
        if old is not None and key != right_key
    ]
    if entry is not None and right_key is not None:
        changes += changes_of(right_key, entry, known[right_key])
    return changes


def changes_of(key: bytes, entry: Entry, old: Stored | None) -> list[Change]:
    """Returns the changes that turn the name stored under an order key into `entry`."""
    if old is None:
        return [Change(Action.INSERT, key, entry, None)]
    action = merge.compare(old.inode, entry)
    return [] if action is None else [Change(action, key, entry, old)]
