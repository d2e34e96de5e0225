"""The mount table in the store: how names are made for a source, and go with it.

A root of the mount table is a dentry like others, *held*: no origin removes it. So are the
directories above it. Its ino is new whenever another source begins or ends to show names there, so
that no ino ever belongs to two sources; only the root of the namespace keeps its own. Roots below
it, of other sources, keep theirs and move.
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
    """`root`: its ino. `parents`: (parent ino, name) of each name on the path."""

    root: int
    parents: list[tuple[int, bytes]]


def add_mount(txn: Transaction, record: MountRecord) -> Added:
    """Puts a source at `record.path`; what an origin has there is hidden. Raises NotADirectory (a
    file on the way), InUse (another source is there), BadConfig (too many sources)."""
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


def remove_mount(txn: Transaction, root: int) -> list[int]:
    """Takes a source out. What lay there is void at once, and deleted later as orphans are. Returns
    the directories whose origins have to be asked again. Raises NotFound."""
    if txn.mount(root) is None:
        raise NotFound("no source is there")
    txn.announce(*EVERYTHING)
    txn.writer.delete(Table.MOUNTS, [ino_key(root)])
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
    """Directories that were held for what is gone now are their origins' again: whether they exist
    is to be asked. Returns their parents."""
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
    """A directory on the way to a root: as it is, or made."""
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
    """A new directory in place of one, with what is held below it and nothing else."""
    old = txn.dentry(parent, key)
    assert old is not None, "only what is there is replaced"
    below = txn.held_below(old.inode.ino)
    txn.remove(parent, key)
    new = _make(txn, parent, name_of(key))
    for child_key, child in below.items():
        _move(txn, old.inode.ino, new, child_key, child)
    return new


def _renew_root(txn: Transaction) -> None:
    """Another source shows, or ends to show, names in the root of the namespace, which stays."""
    txn.announce(*EVERYTHING)
    txn.forget_listing(ROOT_INO)
    for key, child in txn.held_below(ROOT_INO).items():
        if txn.mount(child) is None:
            _replace(txn, ROOT_INO, key)


def _move(txn: Transaction, old: int, new: int, key: bytes, child: int) -> None:
    """A held child goes to another directory: a root as it is, a directory above one anew."""
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
