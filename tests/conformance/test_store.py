"""The contract of a metadata store, run by every engine, and the typed layer over each of them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path

import lmdb
import msgspec
import pytest

from cachefs.core.errors import BadConfig, CacheFSError, InUse, NoSpace
from cachefs.core.model import ROOT_INO, Fingerprint, Inode, Kind, NamespaceId, UfsSpec
from connectors.base import Entry
from master.state.merge import Batch, Pages
from master.state.numbers import SKIPPED, first_of_start
from master.state.records import (
    EVERYTHING,
    META_KEY,
    DirectoryState,
    MountRecord,
    decode_dentry,
    inode_bytes,
)
from master.store import lmdb_store, transaction
from master.store.base import Store, Table, Writer
from master.store.lmdb_store import LmdbStore, refuse_network, remove_store
from master.store.run import StoreRun
from master.store.snapshot import Names
from master.store.transaction import Transaction, initialise, transact
from tests.services.memory_store import MemoryStore

NAMESPACE = NamespaceId(b"n" * 16)
NOW = 1_700_000_000.0
WAIT_S = 60.0


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = LmdbStore(tmp_path / "store") if request.param == "lmdb" else MemoryStore()
    yield opened
    opened.close()


@pytest.fixture
def names_store(store: Store) -> Store:
    initialise(store, NAMESPACE)
    return store


def put(store: Store, *items: tuple[bytes, bytes]) -> None:
    store.write(lambda w: w.put(Table.DENTRIES, items)).result(WAIT_S)


def scan(store: Store, after: bytes, below: bytes, limit: int = 100) -> list[bytes]:
    with store.snapshot() as reader:
        return [key for key, _ in reader.scan(Table.DENTRIES, after, below, limit)]


def file(name: bytes, etag: str = "1") -> Entry:
    return Entry(name, Fingerprint(Kind.FILE, 3, 5, etag))


def directory(name: bytes) -> Entry:
    return Entry(name, Fingerprint(Kind.DIRECTORY))


def listing(entries: list[Entry]) -> list[Batch]:
    """The whole listing of a directory."""
    pages = Pages()
    return [pages.add(entries), pages.end()]


def merge(store: Store, parent: int, entries: list[Entry], at: float = NOW) -> None:
    def run(txn: Transaction) -> None:
        for batch in listing(entries):
            rest: Batch | None = batch
            while rest is not None:
                merged = txn.merge(parent, rest, at, at, frozenset())
                after = merged.resume_after
                rest = None if after is None else rest.rest(after)
        txn.complete_listing(parent, at, 0)

    transact(store, run).result(WAIT_S)


def child(store: Store, parent: int, name: bytes) -> Inode | None:
    with store.snapshot() as reader:
        found = Names(reader).child(parent, name)
    return None if found is None else found.inode


def meta_names(store: Store) -> int:
    with store.snapshot() as reader:
        meta = Names(reader).meta()
    assert meta is not None
    return meta.names


# ---- the engine --------------------------------------------------------------------------------


def test_scans_are_ordered_and_exclude_both_ends(store: Store) -> None:
    keys = [b"a", b"a\0", b"a!", b"a/", b"a0", b"b", b"\xff" * 263]
    put(store, *[(key, b"v") for key in reversed(keys)])
    assert scan(store, b"", b"\xff" * 511) == keys
    assert scan(store, b"a", b"b") == [b"a\0", b"a!", b"a/", b"a0"]
    assert scan(store, b"a", b"b", limit=2) == [b"a\0", b"a!"]
    assert scan(store, b"a", b"b", limit=0) == []
    assert scan(store, b"b", b"a") == []
    assert scan(store, b"zz", b"zzz") == []


def test_scans_are_bounded_in_bytes(store: Store) -> None:
    put(store, *[(b"k%02d" % n, b"v" * 97) for n in range(50)])
    with store.snapshot() as reader:
        assert len(reader.scan(Table.DENTRIES, b"", b"z", 100, limit_bytes=1000)) == 10
        assert len(reader.scan(Table.DENTRIES, b"", b"z", 100, limit_bytes=1)) == 1


def test_tables_are_apart(store: Store) -> None:
    put(store, (b"k", b"v"))
    with store.snapshot() as reader:
        assert reader.get(Table.DENTRIES, b"k") == b"v"
        assert all(reader.get(t, b"k") is None for t in Table if t is not Table.DENTRIES)


def test_a_snapshot_does_not_move(store: Store) -> None:
    put(store, (b"k", b"old"))
    with store.snapshot() as reader:
        put(store, (b"k", b"new"), (b"l", b"new"))
        assert reader.get(Table.DENTRIES, b"k") == b"old"
        assert reader.scan(Table.DENTRIES, b"", b"z", 10) == [(b"k", b"old")]
    assert scan(store, b"", b"z") == [b"k", b"l"]


def test_snapshots_that_have_ended_take_up_nothing(store: Store) -> None:
    """A coroutine that waits keeps its ended snapshot, and there may be any number of them."""
    kept = []
    for _ in range(300):
        with store.snapshot() as reader:
            kept.append(reader)
    assert len(kept) == 300


def test_a_write_sees_itself_and_passes_over_absent_keys(store: Store) -> None:
    def run(writer: Writer) -> bytes | None:
        writer.put(Table.DENTRIES, [(b"k", b"1")])
        writer.put(Table.DENTRIES, [(b"k", b"2")])
        writer.delete(Table.DENTRIES, [b"absent"])
        return writer.get(Table.DENTRIES, b"k")

    assert store.write(run).result(WAIT_S) == b"2"


def test_a_failing_write_leaves_nothing_and_spares_its_neighbours(store: Store) -> None:
    gate = threading.Event()
    blocker = store.write(lambda w: gate.wait(WAIT_S))

    def failing(writer: Writer) -> None:
        writer.put(Table.DENTRIES, [(b"bad", b"")])
        raise BadConfig("no")

    good = [
        store.write(lambda w, n=n: w.put(Table.DENTRIES, [(b"good%d" % n, b"")])) for n in range(3)
    ]
    bad = store.write(failing)
    good += [store.write(lambda w: w.put(Table.DENTRIES, [(b"good3", b"")]))]
    gate.set()
    wait([blocker, bad, *good], WAIT_S)
    assert isinstance(bad.exception(0), BadConfig)
    assert all(future.exception(0) is None for future in good)
    assert scan(store, b"", b"z") == [b"good0", b"good1", b"good2", b"good3"]


def test_writes_run_in_order(store: Store) -> None:
    order: list[int] = []
    futures = [store.write(lambda _, n=n: order.append(n)) for n in range(200)]
    wait(futures, WAIT_S)
    assert order == list(range(200))


def test_closing_commits_what_is_queued_and_refuses_more(store: Store) -> None:
    futures = [
        store.write(lambda w, n=n: w.put(Table.DENTRIES, [(b"%d" % n, b"")])) for n in range(100)
    ]
    store.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(InUse):
        store.write(lambda _: None)
    store.close()


# ---- the typed layer ---------------------------------------------------------------------------


def test_initialising_again_keeps_the_namespace(names_store: Store) -> None:
    again = initialise(names_store, NamespaceId(b"x" * 16))
    assert again.namespace == NAMESPACE
    with names_store.snapshot() as reader:
        root = Names(reader).root()
    assert (root.ino, root.kind) == (ROOT_INO, Kind.DIRECTORY)


def test_another_format_is_refused_with_a_remedy(names_store: Store) -> None:
    with names_store.snapshot() as reader:
        meta = Names(reader).meta()
    newer = msgspec.msgpack.encode(msgspec.structs.replace(meta, format=99))
    names_store.write(lambda w: w.put(Table.META, [(META_KEY, newer)])).result(WAIT_S)
    with pytest.raises(BadConfig, match="format 99") as caught:
        initialise(names_store, NAMESPACE)
    assert caught.value.remedy


def test_names_of_every_length_and_any_bytes(names_store: Store) -> None:
    wanted = [b"x" * 255, b"\xff\xfe", b"\x01", "ä".encode(), b"-"]
    merge(names_store, ROOT_INO, [file(name) for name in wanted] + [directory(b"\xff" * 255)])
    for name in wanted:
        found = child(names_store, ROOT_INO, name)
        assert found is not None
        assert found.kind is Kind.FILE
    found = child(names_store, ROOT_INO, b"\xff" * 255)
    assert found is not None
    assert found.kind is Kind.DIRECTORY
    assert meta_names(names_store) == 6


def test_stored_bytes_are_an_inode_for_clients(names_store: Store) -> None:
    merge(names_store, ROOT_INO, [file(b"x")])
    with names_store.snapshot() as reader:
        ((_, value),) = Names(reader).raw_children(ROOT_INO, b"", None, 10)
    inode = msgspec.msgpack.decode(inode_bytes(value), type=Inode)
    assert inode == child(names_store, ROOT_INO, b"x")
    assert decode_dentry(value).checked_at == NOW


def test_a_directory_keeps_its_ino_and_a_file_that_takes_its_place_does_not(
    names_store: Store,
) -> None:
    merge(names_store, ROOT_INO, [directory(b"d")])
    first = child(names_store, ROOT_INO, b"d")
    merge(names_store, ROOT_INO, [directory(b"d")], NOW + 1)
    assert child(names_store, ROOT_INO, b"d") == first
    merge(names_store, ROOT_INO, [file(b"d")], NOW + 2)
    second = child(names_store, ROOT_INO, b"d")
    assert first is not None
    assert second is not None
    assert second.ino > first.ino
    with names_store.snapshot() as reader:
        assert Names(reader).inode(first.ino) is None
        assert Names(reader).inode(second.ino) is not None


def test_a_removed_directory_is_collected_to_the_last_name(
    names_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "MAX_STORED_PER_MERGE", 3)
    merge_in_parts = [directory(b"d")]
    merge(names_store, ROOT_INO, merge_in_parts)
    top = child(names_store, ROOT_INO, b"d")
    assert top is not None
    merge(names_store, top.ino, [directory(b"e"), *[file(b"f%d" % n) for n in range(7)]])
    below = child(names_store, top.ino, b"e")
    assert below is not None
    merge(names_store, below.ino, [file(b"g")])
    merge(names_store, ROOT_INO, [], NOW + 1)
    steps = 0
    while orphans := _orphans(names_store):
        transact(names_store, lambda t, o=orphans[0]: t.collect_orphan(o)).result(WAIT_S)
        steps += 1
        assert steps < 20
    assert steps > 2, "collected in bounded steps"
    assert meta_names(names_store) == 0
    with names_store.snapshot() as reader:
        left = reader.scan(Table.DENTRIES, b"", b"\xff" * 300, 100)
        parents = reader.scan(Table.PARENTS, b"", b"\xff" * 300, 100)
        directories = reader.scan(Table.DIRECTORIES, b"", b"\xff" * 300, 100)
    assert len(left) == len(parents) == 1, "the root is left"
    assert [int.from_bytes(key, "big") for key, _ in directories] == [ROOT_INO]


def _orphans(store: Store) -> list[int]:
    with store.snapshot() as reader:
        return Names(reader).orphans(10)


def test_events_are_numbered_grouped_and_trimmed(
    names_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "EVENTS_KEPT", 5)
    monkeypatch.setattr(transaction, "EVENT_NAMES", 2)
    merge(names_store, ROOT_INO, [file(b"%d" % n) for n in range(6)])
    for turn in range(4):
        merge(names_store, ROOT_INO, [file(b"%d" % n, f"v{turn}") for n in range(6)], NOW + turn)
    with names_store.snapshot() as reader:
        names = Names(reader)
        meta, events = names.meta(), names.events_after(0, 100)
    assert meta is not None
    assert (meta.first_seq, meta.seq) == (8, 12)
    assert [seq for seq, _ in events] == [8, 9, 10, 11, 12]
    assert all(len(entries) == 2 for _, entries in events)


def test_mounts_and_directory_states_come_back(names_store: Store) -> None:
    record = MountRecord(UfsSpec("s3://b/p", {"profile": "x"}), b"", checked=True)
    transact(names_store, lambda t: t.put_mount(ROOT_INO, record)).result(WAIT_S)
    transact(names_store, lambda t: t.complete_listing(ROOT_INO, NOW, 4)).result(WAIT_S)
    transact(names_store, lambda t: t.complete_listing(ROOT_INO, NOW + 1, 3)).result(WAIT_S)
    transact(names_store, lambda t: t.distrust_directory(ROOT_INO)).result(WAIT_S)
    with names_store.snapshot() as reader:
        names = Names(reader)
        meta = names.meta()
        assert names.mounts() == [(ROOT_INO, record)]
        assert names.directory(ROOT_INO) == DirectoryState(0.0, True, 3)
    assert meta is not None
    assert meta.hidden == 3


# ---- LMDB alone --------------------------------------------------------------------------------


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    first = LmdbStore(tmp_path)
    initialise(first, NAMESPACE)
    merge(first, ROOT_INO, [file(b"x")])
    inode = child(first, ROOT_INO, b"x")
    first.close()
    second = LmdbStore(tmp_path)
    assert initialise(second, NamespaceId(bytes(16))).namespace == NAMESPACE
    assert child(second, ROOT_INO, b"x") == inode
    merge(second, ROOT_INO, [file(b"x", "2")], NOW + 1)
    replaced = child(second, ROOT_INO, b"x")
    second.close()
    assert inode is not None
    assert replaced is not None
    assert replaced.ino > inode.ino, "inos are not given again after a restart"


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    first = LmdbStore(tmp_path)
    with pytest.raises(InUse) as caught:
        LmdbStore(tmp_path)
    assert caught.value.remedy
    first.close()
    LmdbStore(tmp_path).close()


def test_the_directory_is_private(tmp_path: Path) -> None:
    opened = LmdbStore(tmp_path / "deep" / "store")
    assert (tmp_path / "deep" / "store").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep" / "store" / "data.mdb").stat().st_mode & 0o777 == 0o600
    opened.close()


def test_removing_a_store_leaves_other_files(tmp_path: Path) -> None:
    for kept in (True, False):
        opened = LmdbStore(tmp_path / "s")
        opened.close()
        if kept:
            (tmp_path / "s" / "mine").touch()
        remove_store(tmp_path / "s")
        assert os.listdir(tmp_path) == (["s"] if kept else [])
        (tmp_path / "s" / "mine").unlink(missing_ok=True)


@pytest.mark.parametrize("magic", [0x6969, 0xFF534D42, 0x65735546])
def test_network_file_systems_are_refused(magic: int, tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        refuse_network(magic, tmp_path)
    assert caught.value.remedy
    refuse_network(0xEF53, tmp_path)


def test_the_magic_is_asked_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_store, "file_system_magic", lambda path: 0x6969)
    with pytest.raises(BadConfig, match="NFS"):
        LmdbStore(tmp_path / "s")
    monkeypatch.undo()
    assert lmdb_store.file_system_magic(Path("/proc")) == 0x9FA0
    assert lmdb_store.file_system_magic(tmp_path / "absent") == 0


@pytest.mark.parametrize("spoil", [lambda p: p.write_bytes(b"x" * 8192), lambda p: p.mkdir()])
def test_damaged_or_impossible_files_are_one_typed_error(
    spoil: Callable[[Path], object], tmp_path: Path
) -> None:
    spoil(tmp_path / "data.mdb")
    with pytest.raises(CacheFSError) as caught:
        LmdbStore(tmp_path)
    assert str(tmp_path) in caught.value.one_line()
    (tmp_path / "data.mdb").rename(tmp_path / "aside")
    LmdbStore(tmp_path).close()  # nothing is held after the failure


def test_a_quota_of_the_disk_is_no_room(tmp_path: Path) -> None:
    def refused(writer: Writer) -> None:
        raise lmdb.Error("mdb_txn_commit: Disk quota exceeded")

    store = LmdbStore(tmp_path)
    with pytest.raises(NoSpace, match="make room on its disk"):
        store.write(refused).result()
    store.close()


def test_a_full_map_names_the_limit_of_the_address_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_store, "MAP_BYTES", 1 << 20)
    store = LmdbStore(tmp_path)
    rows = [(b"%d" % n, bytes(4096)) for n in range(300)]
    with pytest.raises(NoSpace, match="ulimit -v"):
        store.write(lambda writer: writer.put(Table.META, rows)).result()
    store.close()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadConfig) as caught:
        LmdbStore(tmp_path / "file" / "store")
    assert caught.value.remedy


# ---- runs ----------------------------------------------------------------------------------------


def next_ino(store: Store) -> int:
    with store.snapshot() as reader:
        meta = Names(reader).meta()
    assert meta is not None
    return meta.next_ino


def test_each_start_is_another_run_and_leaves_numbers_out(store: Store) -> None:
    first = StoreRun(store, NAMESPACE, NOW)
    assert next_ino(store) == ROOT_INO + 1, "a new store begins with the first numbers"
    second = StoreRun(store, NAMESPACE, NOW)
    assert second.meta.namespace == NAMESPACE
    assert 0 != first.number != second.number != 0
    assert next_ino(store) == second.meta.next_ino == first_of_start(ROOT_INO + 1, NOW)
    assert StoreRun(store, NAMESPACE, NOW + 60).meta.next_ino > next_ino(store) - 1
    assert next_ino(store) == first_of_start(ROOT_INO + 1, NOW + 60)


def test_a_store_that_workers_know_a_later_state_of_is_another_run(store: Store) -> None:
    it = StoreRun(store, NAMESPACE, NOW)
    number, told = it.number, []
    it.on_set_back = lambda: told.append(it.number)
    before = next_ino(store)
    asyncio.run(it.set_back())
    assert it.number != number
    assert told == [it.number], "who waits for events hears of it, and of the new run"
    assert next_ino(store) == before + SKIPPED
    with store.snapshot() as reader:
        assert Names(reader).events_after(0, 10) == [(1, [EVERYTHING])]
