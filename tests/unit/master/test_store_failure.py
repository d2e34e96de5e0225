"""What a store reports of its last commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import pytest

from cachefs.core.errors import Unavailable
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


class PanicEnv:
    """An environment after a failed write of its meta page."""

    def begin(self, *, write: bool = False) -> Any:
        raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC")


def test_a_store_that_lmdb_gave_up_is_opened_again_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbStore(tmp_path / "store")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(store, "_env", PanicEnv())
            with pytest.raises(Unavailable) as read:
                store.snapshot()
            with pytest.raises(Unavailable) as written:
                store.write(lambda writer: None).result()
        for error in (read.value, written.value):
            assert error.remedy == "see to its disk, then start the server again"
    finally:
        store.close()
