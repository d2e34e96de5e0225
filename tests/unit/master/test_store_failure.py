"""What a store reports of its last commit."""

from __future__ import annotations

from pathlib import Path

from master.store.base import Table
from master.store.lmdb_store import LmdbStore


def test_only_a_commit_that_needs_the_disk_ends_a_failure(tmp_path: Path) -> None:
    """Polls for work write nothing, and succeed on a disk that is read-only."""
    store = LmdbStore(tmp_path / "store")
    try:
        store.failure = "the disk is read-only"
        store.write(lambda writer: writer.get(Table.META, b"key")).result()
        store.write(lambda writer: writer.delete(Table.META, [b"key"])).result()
        assert store.failure == "the disk is read-only"
        store.write(lambda writer: writer.put(Table.META, [(b"key", b"value")])).result()
        assert store.failure == ""
        store.failure = "the disk is read-only"
        store.write(lambda writer: writer.delete(Table.META, [b"key"])).result()
        assert store.failure == ""
    finally:
        store.close()
