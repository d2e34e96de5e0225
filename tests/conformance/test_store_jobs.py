"""Load jobs in a metadata store, on every engine: records, lists of paths, failures, forgetting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cachefs.core.errors import BadConfig
from cachefs.core.jobs import JobFailure, JobSpec, JobState
from master.state.job_record import JobRecord, decode_record
from master.state.window import Position
from master.store import jobs
from master.store.base import Store, Table
from master.store.lmdb_store import LmdbStore
from tests.services.memory_store import MemoryStore

WAIT_S = 60.0
LONG = b"d" * 200 + b"/" + b"e" * 200 + b"/" + b"f" * 200  # longer than a key may be


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = LmdbStore(tmp_path / "store") if request.param == "lmdb" else MemoryStore()
    yield opened
    opened.close()


def submit(store: Store, *paths: bytes) -> JobRecord:
    record = JobRecord(0, JobSpec((), hold_s=3.5), paths[:2], len(paths), 5.0)
    return store.write(lambda w: jobs.put_new(w, record, paths)).result(WAIT_S)


def put(store: Store, record: JobRecord, *failed: JobFailure) -> None:
    store.write(lambda w: jobs.put(w, record, failed)).result(WAIT_S)


def failed(store: Store, record: JobRecord, after: int = 0, limit: int = 100) -> list[bytes]:
    with store.snapshot() as reader:
        found = jobs.failures(reader, record.job, record.round, after, limit)
    return [failure.path for _, failure in found]


def forget(store: Store, record: JobRecord) -> None:
    while not store.write(lambda w: jobs.forget_some(w, record)).result(WAIT_S):
        pass


def rows(store: Store, table: Table) -> int:
    with store.snapshot() as reader:
        return len(reader.scan(table, b"", b"\xff" * 60, 1 << 20))


def test_a_job_comes_back_as_it_was_put(store: Store) -> None:
    first, second = submit(store, b"a", LONG), submit(store, b"b")
    assert (first.job, second.job) == (1, 2)
    first = msgspec.structs.replace(
        first, state=JobState.STOPPED, fed=Position(1, b"x/y"), files_done=7
    )
    put(store, first)
    with store.snapshot() as reader:
        assert jobs.records(reader) == [first, second]


def test_numbers_are_not_given_again(store: Store) -> None:
    only = submit(store, b"a")
    forget(store, msgspec.structs.replace(only, forgotten=True))
    assert submit(store, b"a").job == 2


def test_paths_are_read_from_a_place_on(store: Store) -> None:
    first, second = submit(store, b"a", LONG, b""), submit(store, b"other")
    store.write(lambda w: jobs.put_paths(w, first.job, 3, [b"d", b"e"])).result(WAIT_S)
    with store.snapshot() as reader:
        assert jobs.paths(reader, first.job, 0, 100) == [b"a", LONG, b"", b"d", b"e"]
        assert jobs.paths(reader, first.job, 2, 2) == [b"", b"d"]
        assert jobs.paths(reader, first.job, 5, 2) == []
        assert jobs.paths(reader, second.job, 0, 100) == [b"other"]


def test_failures_are_listed_in_pages_and_found_by_path(store: Store) -> None:
    record, other = submit(store, b"a"), submit(store, b"b")
    many = [JobFailure(b"f%d" % n, "not-found", "gone", 3) for n in range(5)]
    put(store, record, *many[:3])
    put(store, record)
    put(store, record, *many[3:], JobFailure(LONG, "access-denied", "403"))
    assert failed(store, record) == [b"f0", b"f1", b"f2", b"f3", b"f4", LONG]
    assert failed(store, record, after=2, limit=2) == [b"f2", b"f3"]
    with store.snapshot() as reader:
        assert jobs.has_failed(reader, record.job, 0, LONG)
        assert not jobs.has_failed(reader, record.job, 0, b"f9")
        assert not jobs.has_failed(reader, other.job, 0, b"f0")
        assert not jobs.has_failed(reader, record.job, 1, b"f0"), "of another round"


def test_an_earlier_round_is_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ROWS_AT_ONCE", 4)
    record = submit(store, b"a")
    put(store, record, *(JobFailure(b"f%d" % n, "x", "y") for n in range(20)))
    later = msgspec.structs.replace(record, round=1)
    put(store, later, JobFailure(b"new", "x", "y"))
    forget(store, later)
    assert failed(store, record) == []
    assert failed(store, later) == [b"new"]
    assert rows(store, Table.JOB_FAILURES) == 2


def test_a_forgotten_job_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ROWS_AT_ONCE", 4)
    record, other = submit(store, *(b"p%d" % n for n in range(9))), submit(store, b"b")
    put(store, record, *(JobFailure(b"f%d" % n, "x", "y") for n in range(9)))
    put(store, other, JobFailure(b"f", "x", "y"))
    forgotten = msgspec.structs.replace(record, forgotten=True)
    put(store, forgotten)
    assert not store.write(lambda w: jobs.forget_some(w, forgotten)).result(WAIT_S)
    with store.snapshot() as reader:
        assert forgotten in jobs.records(reader), "until nothing else is left of it"
    forget(store, forgotten)
    with store.snapshot() as reader:
        assert jobs.records(reader) == [other]
        assert jobs.paths(reader, other.job, 0, 9) == [b"b"]
    assert (rows(store, Table.JOB_PATHS), rows(store, Table.JOB_FAILURES)) == (1, 2)


def test_a_damaged_record_is_said(store: Store) -> None:
    with pytest.raises(BadConfig, match="damaged"):
        decode_record(b"\xc1")


def test_who_gives_up_waiting_cancels_no_write(store: Store) -> None:
    """A wait that is cancelled leaves the write, and the thread that writes, alone."""
    waits = [
        store.write(lambda w, n=n: w.put(Table.MEMBERS, [(b"%d" % n, b"x")]))  # type: ignore[misc]
        for n in range(20)
    ]
    assert not any(wait.cancel() for wait in waits)
    for wait in waits:
        wait.result(WAIT_S)
    assert rows(store, Table.MEMBERS) == 20
