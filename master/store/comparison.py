"""What an origin shows beside the names that are stored: reads only, in one snapshot or in the
transaction that writes the difference.
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
    """A part of a directory's listing, compared. `entries` and `late` (files from before the part,
    decided now) are what the origin shows in it, without the roots of sources."""

    changes: Sequence[Change] = ()
    entries: Sequence[tuple[bytes, Entry]] = ()
    late: Sequence[Entry] = ()
    upto: bytes | None = None  # all smaller order keys are compared; None: the whole directory
    cut: bool = False  # the rest of the batch, behind `upto`, is still to be compared
    was_listed: bool = False  # all names of the directory were known before


def compare(
    names: Names, parent: int, batch: Batch, asked_at: float, now: float, limit: int
) -> Compared:
    """A batch of a listing that began at `asked_at`, as far as `limit` stored names go."""
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
    """The batch without what it says of held names: of a directory above a root it may say the
    attributes, of a root nothing. `waiting` names keep what is stored under them."""
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
    """Changes of names from before the range."""
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
    """What an origin's answer about one name (None: not there) changes; of a name that is not
    held."""
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
    """What an entry changes for what is stored under its order key."""
    if old is None:
        return [Change(Action.INSERT, key, entry, None)]
    action = merge.compare(old.inode, entry)
    return [] if action is None else [Change(action, key, entry, old)]
