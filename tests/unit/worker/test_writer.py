"""An index whose writer fails as nobody expected: all who wait hear of it, the tier is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from tests.unit.worker.rig import LIMIT_S, MIB, Rig, only, read, run, until
from worker.cache.cache import Cache
from worker.store.changes import DropFile
from worker.store.directory import TierDirectory
from worker.store.writer import IndexBroken, Writer
from worker.tier.probe import BROKEN

CHANGE = DropFile(b"k" * 36)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[TierDirectory]:
    taken = TierDirectory.take(str(tmp_path / "tier"))
    yield taken
    taken.close()


class Waiter:
    """Who waits for a commit."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.error: OSError | None = None

    def done(self, error: OSError | None) -> None:
        self.error = error
        self.told.set()

    def broken(self) -> bool:
        assert self.told.wait(LIMIT_S), "nobody told it"
        return isinstance(self.error, IndexBroken)


def wrong(*_: object) -> None:
    raise ValueError("what nobody thought of")


def held(writer: Writer, act: Callable[[], None]) -> threading.Event:
    """The writer does `act` once the event is set, and nothing before."""
    go_on = threading.Event()

    def wait() -> None:
        assert go_on.wait(LIMIT_S)
        act()

    writer.submit([], lambda error: None, wait)
    return go_on


def ends(writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    """Broken: nobody waits, now or later; said in the log once."""
    late = Waiter()
    assert writer.submit([CHANGE], late.done)
    assert late.broken()
    with pytest.raises(IndexBroken):
        writer.write([CHANGE])
    assert (writer.waiting, writer.at_disk & 1) == (0, 0)
    assert writer.close(LIMIT_S)
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "what nobody thought of" in caplog.text


def all_waits_end(writer: Writer, go_on: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    """Of what is queued while the writer is held, too."""
    waiters = [Waiter() for _ in range(3)]
    for waiter in waiters:
        writer.submit([CHANGE], waiter.done)
    go_on.set()
    assert all(waiter.broken() for waiter in waiters)
    ends(writer, caplog)


def test_a_commit_that_fails_as_nobody_expected_ends_all_waits(
    tier: TierDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tier.index)
    monkeypatch.setattr(tier.index, "write", wrong)
    go_on = held(writer, lambda: None)
    all_waits_end(writer, go_on, caplog)


def test_what_follows_a_commit_may_fail_and_all_waits_end(
    tier: TierDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    """Publishing is done by the same thread; of one batch or of the next, none waits for ever."""
    writer = Writer(tier.index)
    go_on = held(writer, wrong)
    all_waits_end(writer, go_on, caplog)


def test_who_cannot_be_told_keeps_nobody_from_being_told(
    tier: TierDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tier.index)
    monkeypatch.setattr(tier.index, "write", wrong)
    go_on = held(writer, lambda: None)
    writer.submit([CHANGE], wrong)
    waiter = Waiter()
    writer.submit([CHANGE], waiter.done)
    go_on.set()
    assert waiter.broken()
    assert writer.close(LIMIT_S)


class PanicEnv:
    """An environment whose first write of the meta page fails: LMDB then refuses everything."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.panicked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @contextmanager
    def begin(self, *, write: bool = False) -> Iterator[Any]:
        if self.panicked:
            raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC")
        with self._env.begin(write=write) as txn:
            yield txn
            if write:
                self.panicked = True
                raise lmdb.Error("mdb_txn_commit: Input/output error")


def fail_writes(worker: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(only(worker).disk.directory.index, "write", wrong)


def panic(worker: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    index = only(worker).disk.directory.index
    monkeypatch.setattr(index, "_env", PanicEnv(index._env))


@pytest.mark.parametrize("fail", [fail_writes, panic])
def test_a_tier_whose_index_cannot_be_written_is_left_and_reads_go_past_it(
    fail: Callable[[Cache, pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(tmp_path, 64 * MIB)
    for ino in (2, 3, 4):
        rig.put(ino, 5000)

    def row(worker: Cache) -> dict[str, Any]:
        (found,) = worker.status()["tiers"]
        assert isinstance(found, dict)
        return found

    async def main() -> None:
        async with rig.worker() as worker:
            assert await read(worker, 2) == rig.data[2]
            await until(lambda: row(worker)["commits_waiting"] == 0)
            fail(worker, monkeypatch)
            assert await read(worker, 3) == rig.data[3]
            await until(lambda: row(worker)["state"] == "offline")
            assert row(worker)["cause"] == BROKEN
            for ino in (2, 3, 4):
                assert await read(worker, ino) == rig.data[ino]
            monkeypatch.undo()
            for ino in (2, 3, 4):
                assert await read(worker, ino) == rig.data[ino]
            assert row(worker)["state"] == "offline", "until the worker is started again"

    run(main())
    assert "the cache is out of service" in caplog.text
    assert "requests in flight" not in caplog.text

    async def again() -> None:
        reads = rig.origin.calls["read"]
        async with rig.worker() as worker:
            assert row(worker)["state"] == "normal"
            assert await read(worker, 2) == rig.data[2]
        assert rig.origin.calls["read"] == reads, "what was recorded is there"

    run(again())
