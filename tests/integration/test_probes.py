"""Origins that nobody asks are asked now and then: what a master knows of them without a reader."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import lmdb
import pytest

from cachefs.core.errors import AccessDenied, CredentialsMissing, NoSpace, Unreachable
from cachefs.core.model import UfsSpec
from master import probes
from master.namespace import Master
from master.state.health import OriginHealth
from master.store.base import Table
from master.store.lmdb_store import LmdbStore
from master.tree import Tree
from tests.integration.test_master import Clock, opened, run, until
from tests.services.memory import MemoryConnector


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "EVERY_S", 0.02)


def health_of(master: Master) -> OriginHealth:
    (mount,) = [one for one in master._tree.mounts() if not one.is_void]
    return mount.health


def test_an_origin_that_goes_away_and_comes_back_is_known_without_a_reader(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, Clock()) as master:
            master.start_probes()
            for error in (Unreachable("no route"), CredentialsMissing("expired")):
                origin.fail("check", None, error, 1_000_000)
                await until(lambda: health_of(master).down)
                source = master.status()["sources"][0]
                assert (source["down_cause"], source["down_code"]) == (error.cause, error.code)
                assert source["down_since_s"] > 0
                origin.script._faults.clear()
                await until(lambda: not health_of(master).down)

    run(work())


def test_an_origin_that_refuses_answers(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, Clock()) as master:
            origin.fail("check", None, AccessDenied("no"), 1_000_000)
            before = origin.calls["check"]
            master.start_probes()
            await until(lambda: origin.calls["check"] > before + 2)
            assert not health_of(master).down, "it answers"
            source = master.status()["sources"][0]
            assert (source["origin_down"], source["origin_refuses"]) == (False, True)
            assert source["down_cause"] == "no"
            origin.script._faults.clear()
            await until(lambda: not master.status()["sources"][0]["origin_refuses"])

    run(work())


def test_an_origin_that_readers_ask_is_not_asked_by_probes(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, Clock()) as master:
            before = origin.calls["check"]
            rounds = probes.Probes(master._tree, lambda: 0.0, None)
            health_of(master).was_asked = True
            rounds.round(0.0)
            rounds.round(0.7 * probes.EVERY_S)
            assert origin.calls["check"] == before
            rounds.round(1.0 * probes.EVERY_S)
            await until(lambda: origin.calls["check"] == before + 1)
            await rounds.close()

    run(work())


def test_a_silent_origin_is_shown_as_down_after_the_limit_and_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "LIMIT_S", 0.05)
    answer = threading.Event()

    class Silent(MemoryConnector):
        asked = 0

        def check(self) -> None:
            self.asked += 1
            assert answer.wait(30)

    async def work() -> None:
        origin = Silent({b"x": b"1"})
        master = Master.open(tmp_path / "meta", UfsSpec("s3://bucket/prefix"), origin, 60.0)
        master.start_probes()
        await until(lambda: master.status()["sources"][0]["origin_down"])
        assert "no answer within" in master.status()["sources"][0]["down_cause"]
        assert not health_of(master).down, "callers go on asking it"
        assert origin.asked == 1
        answer.set()
        await until(lambda: not master.status()["sources"][0]["origin_down"])
        await master.close()

    run(work())


def test_a_commit_that_fails_is_shown_until_one_goes_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise lmdb.DiskError("mdb_put: No space left on device")

    store = LmdbStore(tmp_path / "meta")
    with pytest.raises(NoSpace):
        store.write(no_room).result(30)
    assert store.failure == "no room for the metadata store"
    assert probes.Probes(Tree(), float, None, lambda: store.failure).status()["cause"]
    store.write(lambda writer: None).result(30)
    assert store.failure, "a commit that writes nothing needs no room"
    store.write(lambda writer: writer.put(Table.META, [(b"key", b"value")])).result(30)
    assert store.failure == ""
    store.close()


def test_the_free_space_of_the_store_is_looked_at(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, MemoryConnector({}), Clock()) as master:
            assert master.status()["store"] == {}
            master.start_probes()
            await until(lambda: master.status()["store"]["free_bytes"] > 0)

    run(work())


def test_a_check_that_waits_for_a_thread_says_nothing_of_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "LIMIT_S", 0.05)
    monkeypatch.setattr(probes, "MOST_AT_ONCE", 1)

    async def work() -> None:
        async with opened(tmp_path, MemoryConnector({b"x": b"1"}), Clock()) as master:
            hangs = threading.Event()
            rounds = probes.Probes(master._tree, lambda: 1.0, None)
            busy = rounds._threads.submit(hangs.wait, 30)
            rounds.round(0.0)
            await asyncio.sleep(0.2)  # four times the limit
            assert not master.status()["sources"][0]["origin_down"]
            hangs.set()
            assert busy.result(30)
            await until(lambda: not rounds._checks)
            await rounds.close()

    run(work())
