"""The mount table in the store: the names that adding and removing a source creates and removes.

A root of the mount table is a *held* dentry: no origin removes it. The directories above it are
held too. A root gets a new ino whenever its source changes, so that no ino ever belongs to two
sources. Only the root of the namespace keeps its ino. When a directory gets a new ino, the roots of
other sources below it keep their inos and move to the new directory.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cachefs.core.errors import BadConfig, InUse, NotADirectory, NotFound
from cachefs.core.model import ROOT_INO
from connectors.base import order_key
from master.state.records import EVERYTHING, MountRecord, Stored, dentry_key, ino_key, name_of
from master.store.base import Table
from master.store.transaction import Transaction

MAX_MOUNTS: Final = 1000


class Added(msgspec.Struct, frozen=True):
    """An added mount. `root`: its ino. `parents`: (parent ino, name) of each name on the path."""

    root: int
    parents: list[tuple[int, bytes]]


def add_mount(txn: Transaction, record: MountRecord) -> Added:
    """Mounts a source at `record.path` and hides what an outer source has there. Raises InUse (a
    source is mounted there), NotADirectory (a file on the path), BadConfig (too many sources)."""
    if len(txn.mounts()) >= MAX_MOUNTS:
        raise BadConfig(f"the mount table has {MAX_MOUNTS} sources, which is the limit")
    *above, last = record.path.split(b"/")
    at = ROOT_INO
    parents = []
    for name in above:
        parents.append((at, name))
        at = _held_directory(txn, at, name)
    if last:
        parents.append((at, last))
        at = _new_root(txn, at, last)
    elif txn.mount(at) is not None:
        raise InUse("another source is there", path="/")
    else:
        _renew_root(txn)
    txn.put_mount(at, record)
    return Added(at, parents)


def change_mount(txn: Transaction, root: int, record: MountRecord) -> None:
    """Replaces the record of a source, which keeps its identity. Workers learn it by the event for
    everything. What is kept of the reports of another feed ends. Raises NotFound."""
    before = txn.mount(root)
    if before is None:
        raise NotFound("no source is there")
    txn.announce(*EVERYTHING)
    if before.push != record.push:
        txn.put_feed(root, None)
    txn.put_mount(root, record)


def remove_mount(txn: Transaction, root: int) -> list[int]:
    """Removes a source. Its names are invalid at once; the orphan collection deletes them later.
    Returns the directories that the origin must list again. Raises NotFound."""
    if txn.mount(root) is None:
        raise NotFound("no source is there")
    txn.announce(*EVERYTHING)
    txn.writer.delete(Table.MOUNTS, [ino_key(root)])
    txn.put_feed(root, None)
    if root == ROOT_INO:
        _renew_root(txn)
        return [root]
    place = txn.place(root)
    assert place is not None, "a held directory has a place"
    parent, key = place
    if txn.held_below(root):
        _replace(txn, parent, key)
        return []
    txn.unhold(parent, key)
    txn.remove(parent, key)
    txn.distrust_directory(parent)
    return [parent, *_let_go(txn, parent)]


def _let_go(txn: Transaction, directory: int) -> list[int]:
    """Releases the directories that were held only for a removed source: the origin decides again
    whether they exist. Returns their parents, which the origin must list again."""
    asked = []
    while directory != ROOT_INO and txn.mount(directory) is None and not txn.held_below(directory):
        place = txn.place(directory)
        assert place is not None, "a held directory has a place"
        parent, key = place
        txn.unhold(parent, key)
        txn.distrust(parent, key)
        txn.distrust_directory(parent)
        txn.announce(parent, name_of(key))
        asked.append(parent)
        directory = parent
    return asked


def _held_directory(txn: Transaction, parent: int, name: bytes) -> int:
    """Holds a directory above a root, and creates it if missing. Returns its ino."""
    key = order_key(name, True)
    stored = txn.dentry(parent, key)
    if stored is None:
        if txn.dentry(parent, name) is not None:
            shown = name.decode("utf-8", "backslashreplace")
            raise NotADirectory(f"'{shown}' on the way is not a directory")
        return _make(txn, parent, name)
    txn.hold(parent, key, stored.inode.ino)
    return stored.inode.ino


def _new_root(txn: Transaction, parent: int, name: bytes) -> int:
    key = order_key(name, True)
    if txn.dentry(parent, name) is not None:
        txn.remove(parent, name)
    stored = txn.dentry(parent, key)
    if stored is None:
        return _make(txn, parent, name)
    if txn.mount(stored.inode.ino) is not None:
        raise InUse("another source is there")
    txn.announce(*EVERYTHING)
    return _replace(txn, parent, key)


def _make(txn: Transaction, parent: int, name: bytes) -> int:
    ino = txn.insert_directory(parent, name)
    txn.hold(parent, order_key(name, True), ino)
    return ino


def _replace(txn: Transaction, parent: int, key: bytes) -> int:
    """Replaces a directory by a new one that keeps only the held names. Returns the new ino."""
    old = txn.dentry(parent, key)
    assert old is not None, "only what is there is replaced"
    below = txn.held_below(old.inode.ino)
    txn.remove(parent, key)
    new = _make(txn, parent, name_of(key))
    for child_key, child in below.items():
        _move(txn, old.inode.ino, new, child_key, child)
    return new


def _renew_root(txn: Transaction) -> None:
    """Invalidates the names in the namespace's root when its source changes. The root stays."""
    txn.announce(*EVERYTHING)
    txn.forget_listing(ROOT_INO)
    for key, child in txn.held_below(ROOT_INO).items():
        if txn.mount(child) is None:
            _replace(txn, ROOT_INO, key)


def _move(txn: Transaction, old: int, new: int, key: bytes, child: int) -> None:
    """Moves a held child. A root keeps its ino; a directory above a root is created again."""
    stored = txn.dentry(old, key)
    assert stored is not None, "what is held is there"
    txn.unhold(old, key)
    if txn.mount(child) is not None:
        _move_root(txn, old, new, key, stored)
        return
    below = txn.held_below(child)
    txn.remove(old, key)
    made = _make(txn, new, name_of(key))
    for child_key, grandchild in below.items():
        _move(txn, child, made, child_key, grandchild)


def _move_root(txn: Transaction, old: int, new: int, key: bytes, stored: Stored) -> None:
    txn.writer.delete(Table.DENTRIES, [dentry_key(old, key)])
    txn.put_dentry(new, key, stored)
    txn.writer.put(Table.PARENTS, [(ino_key(stored.inode.ino), dentry_key(new, key))])
    txn.hold(new, key, stored.inode.ino)
