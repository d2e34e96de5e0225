"""What the store keeps of the reports about a source ends with its feed, also if written late."""

from __future__ import annotations

from cachefs.core.model import ROOT_INO, NamespaceId, UfsSpec
from master.state.feed_state import FeedRecord
from master.state.records import MountRecord
from master.store.base import Store
from master.store.mounts import change_mount, remove_mount
from master.store.snapshot import Names
from master.store.transaction import initialise, transact
from tests.services.memory_store import MemoryStore

FED = MountRecord(UfsSpec("s3://x"), push="sqs:a")
FEED = FeedRecord("sqs:a", 1.0, 2.0)


def kept(store: Store) -> FeedRecord | None:
    with store.snapshot() as reader:
        return Names(reader).feed(ROOT_INO)


def test_a_feed_that_ends_while_its_record_is_written_leaves_none() -> None:
    store = MemoryStore()
    initialise(store, NamespaceId(b"n" * 16))
    transact(store, lambda txn: txn.put_mount(ROOT_INO, FED)).result()
    transact(store, lambda txn: txn.put_feed(ROOT_INO, FEED)).result()
    assert kept(store) == FEED
    without = MountRecord(FED.source)
    transact(store, lambda txn: change_mount(txn, ROOT_INO, without)).result()
    assert kept(store) is None
    transact(store, lambda txn: txn.put_feed(ROOT_INO, FEED)).result()
    assert kept(store) is None
    transact(store, lambda txn: remove_mount(txn, ROOT_INO)).result()
    transact(store, lambda txn: txn.put_feed(ROOT_INO, FEED)).result()
    assert kept(store) is None
    store.close()
