"""The folders that changed after a position: those of the events, everything where events are
missing, and a position from which the next request continues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cachefs.core.change_messages import MOST_FOLDERS, ChangedFolders, changed_by
from cachefs.core.messages import Invalidate
from cachefs.core.model import ROOT_INO, NamespaceId
from master import events
from master.events import EventStream
from master.store.base import Store
from master.store.transaction import initialise, transact
from tests.services.memory_store import MemoryStore

NAMESPACE = NamespaceId(b"n" * 16)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    made = MemoryStore()
    initialise(made, NAMESPACE)
    yield made
    made.close()


def change(store: Store, folder: int) -> None:
    transact(store, lambda txn: txn.announce(folder, b"name")).result()


def test_a_position_has_the_changes_after_it(store: MemoryStore) -> None:
    stream = EventStream(store, NAMESPACE)
    start = stream.changed_folders(-1)
    assert start == ChangedFolders(stream.position(), [])
    assert stream.changed_folders(start.position) == start
    for folder in (7, 5, 7, ROOT_INO):
        change(store, folder)
    after = stream.changed_folders(start.position)
    assert after == ChangedFolders(stream.position(), [ROOT_INO, 5, 7])
    change(store, 9)
    assert stream.changed_folders(after.position).folders == [9]
    stream.close()


def test_a_position_that_the_store_does_not_have_means_everything(store: MemoryStore) -> None:
    stream = EventStream(store, NAMESPACE)
    change(store, 7)
    now = stream.position()
    assert stream.changed_folders(now + 1) == ChangedFolders(now, [], everything=True)
    stream.close()


def test_after_many_changes_anything_may_have_changed(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "READ_AT_ONCE", 2)
    monkeypatch.setattr(events, "MOST_NAMES", 4)
    stream = EventStream(store, NAMESPACE)
    start = stream.position()
    for _ in range(4):
        change(store, 7)
    assert stream.changed_folders(start).folders == [7]
    change(store, 7)
    now = stream.position()
    assert stream.changed_folders(start) == ChangedFolders(now, [], everything=True)
    assert stream.changed_folders(now).folders == []
    stream.close()


def test_too_many_folders_are_everything() -> None:
    entries = [(ino, b"x") for ino in range(MOST_FOLDERS + 1)]
    few = Invalidate(NAMESPACE, 1, entries[:-1])
    assert len(changed_by([few], 1).folders) == MOST_FOLDERS
    many = Invalidate(NAMESPACE, 2, entries)
    assert changed_by([many], 2, 9) == ChangedFolders(2, [], everything=True, run=9)
    everything = Invalidate(NAMESPACE, 3, everything=True)
    assert changed_by([everything], 3) == ChangedFolders(3, [], everything=True)
