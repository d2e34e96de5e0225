"""A worker in its cluster: registers, beats, takes the newest view, registers again where it is not
known, leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import ProtocolError
from cachefs.core.model import NamespaceId
from cachefs.core.placement import Member, View
from tests.unit.worker_cluster.fake_master import NAMESPACE, run, until
from worker.membership.master_client import MasterUnreachable
from worker.membership.member import Condition, Membership, is_newer

ME = c.Register("w1", "http://127.0.0.1:1", 1.0, "host", process=77)
MEMBER = Member("w1", "http://127.0.0.1:1", 1.0, "host")
OTHER = Member("w2", "http://127.0.0.1:2", 1.0)


class FakeMaster:
    url = "http://fake:1"

    def __init__(self) -> None:
        self.view = View(3, (MEMBER,), version=5)
        self.namespace = NAMESPACE
        self.known = True
        self.draining = False
        self.down = False
        self.protocol = c.PROTOCOL
        self.store_run = 7
        self.asked: list[Any] = []

    async def ask(self, body: Any, kind: type, *, answer_s: float = 0, reach_s: float = 0) -> Any:
        self.asked.append(body)
        await asyncio.sleep(0)
        if self.down:
            raise MasterUnreachable("down")
        match body:
            case c.Register():
                self.known = True
                return c.Registered(self.namespace, self.view, 0.001, self.protocol, self.store_run)
            case c.Heartbeat():
                other = (body.epoch, body.version) != (self.view.epoch, self.view.version)
                return c.Beaten(self.view if other else None, self.known, self.draining)
            case c.GetView():
                return c.ViewReply(self.view)
            case c.Leave():
                return m.Done()
        raise AssertionError(body)

    def count(self, kind: type) -> int:
        return sum(isinstance(body, kind) for body in self.asked)


def membership(master: FakeMaster, **options: Any) -> tuple[Membership, list[View]]:
    views: list[View] = []
    return Membership(master, ME, on_view=views.append, **options), views


def test_a_worker_registers_beats_and_leaves() -> None:
    async def script() -> None:
        master = FakeMaster()
        told = Condition(settled=2, capacity_bytes=100, used_bytes=40, facts={"tiers": 1})
        it, views = membership(master, condition=lambda: told)
        assert await it.start() == master.view == it.current
        assert it.member == MEMBER
        await until(lambda: master.count(c.Heartbeat) > 2)
        await it.stop()
        await it.stop()
        assert views == [master.view]
        assert master.asked[0] == ME
        assert master.asked[1] == c.Heartbeat("w1", 3, 2, 100, 40, {"tiers": 1}, 5, ME.url)
        assert master.asked[-1] == c.Leave("w1", 77)
        assert master.count(c.Leave) == 1
        beats = master.count(c.Heartbeat)
        await asyncio.sleep(0.01)
        assert master.count(c.Heartbeat) == beats, "who left beats no more"

    run(script())


def test_views_are_followed_and_never_backwards() -> None:
    async def script() -> None:
        master = FakeMaster()
        it, views = membership(master)
        first = await it.start()
        master.view = View(4, (MEMBER, OTHER), before=(MEMBER,), version=6)
        await until(lambda: len(views) == 2)
        second = it.current
        master.view = View(4, (MEMBER, OTHER), version=7)
        await until(lambda: len(views) == 3)
        assert it.current.before == ()
        master.view = second
        assert (await it.refresh()).version == 7
        it._heartbeat_s = 1000.0  # nobody else brings the next one
        await asyncio.sleep(0.01)
        master.view = View(5, (MEMBER,), version=8)
        assert await it.refresh() == master.view == it.current
        await it.stop()
        assert [view.version for view in views] == [5, 6, 7, 8]
        assert views[0] == first

    run(script())


def test_a_view_is_newer_by_its_epoch_or_its_version() -> None:
    assert is_newer(View(4, version=0), View(3, version=9))
    assert is_newer(View(3, version=10), View(3, version=9))
    assert not is_newer(View(3, version=9), View(3, version=9))
    assert not is_newer(View(2, version=10), View(3, version=9))


def test_who_is_not_known_registers_again() -> None:
    async def script() -> None:
        master = FakeMaster()
        it, views = membership(master)
        await it.start()
        master.known = False
        master.view = View(9, (MEMBER,), version=20)
        await until(lambda: master.count(c.Register) == 2)
        await until(lambda: len(views) == 2)
        assert it.current.epoch == 9
        await it.stop()

    run(script())


def test_a_master_that_started_anew_counts_even_where_its_epochs_are_lower() -> None:
    async def script() -> None:
        master = FakeMaster()
        namespaces: list[NamespaceId] = []
        it, views = membership(master, on_namespace=namespaces.append)
        await it.start()
        master.known = False
        master.namespace = NamespaceId(b"o" * 16)
        master.view = View(1, (MEMBER,), version=1)
        await until(lambda: len(views) == 2)
        assert it.current == master.view
        assert namespaces == [NAMESPACE, master.namespace]
        await it.stop()

    run(script())


def test_without_a_master_the_view_stays_and_the_beats_go_on() -> None:
    async def script() -> None:
        master = FakeMaster()
        it, views = membership(master)
        view = await it.start()
        master.down = True
        beats = master.count(c.Heartbeat)
        await until(lambda: master.count(c.Heartbeat) > beats + 2)
        assert it.current == view
        master.down = False
        master.view = View(5, (MEMBER,), version=9)
        await until(lambda: it.current.epoch == 5)
        master.down = True
        await it.stop()
        assert views == [view, master.view]

    run(script())


def test_draining_is_told_when_it_changes() -> None:
    async def script() -> None:
        master = FakeMaster()
        told: list[bool] = []
        it, _ = membership(master, on_draining=told.append)
        await it.start()
        master.draining = True
        await until(lambda: told == [True])
        master.draining = False
        await until(lambda: told == [True, False])
        await it.stop()

    run(script())


def test_a_beat_can_come_early() -> None:
    async def script() -> None:
        master = FakeMaster()
        it, _ = membership(master)
        await it.start()
        it._heartbeat_s = 1000.0
        for beats in (1, 2):
            it.send_heartbeat_soon()
            await until(lambda beats=beats: master.count(c.Heartbeat) == beats)
        await it.stop()

    run(script())


def test_another_weight_is_registered() -> None:
    async def script() -> None:
        master = FakeMaster()
        it, _ = membership(master)
        await it.start()
        await it.reweigh(2.0, 500)
        register = [body for body in master.asked if isinstance(body, c.Register)][-1]
        assert (register.worker, register.weight, register.capacity_bytes) == ("w1", 2.0, 500)
        await it.stop()

    run(script())


def test_a_start_that_fails_leaves_nothing_running() -> None:
    async def script() -> None:
        master = FakeMaster()
        it, _ = membership(master)
        master.down = True
        with pytest.raises(MasterUnreachable):
            await it.start()
        master.down, master.protocol = False, c.PROTOCOL + 2
        with pytest.raises(ProtocolError):
            await it.start()
        await it.stop()
        assert master.count(c.Heartbeat) == master.count(c.Leave) == 0

    run(script())


def test_beats_that_end_by_a_mistake_say_so(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Condition:
        raise ZeroDivisionError("a mistake")

    async def script() -> None:
        it, _ = membership(FakeMaster(), condition=broken)
        await it.start()
        await until(lambda: "no more heartbeats: a mistake" in caplog.text)
        await it.stop()

    run(script())


def test_a_registration_says_the_epoch_that_is_known_and_hears_of_the_store_s_run() -> None:
    async def script() -> None:
        master = FakeMaster()
        runs: list[tuple[NamespaceId, int]] = []
        it, _ = membership(master, on_store_run=lambda *run: runs.append(run))
        await it.start()
        master.store_run = 8
        master.known = False
        await until(lambda: len(runs) == 2)
        await it.stop()
        assert runs == [(NAMESPACE, 7), (NAMESPACE, 8)]
        asked = [body.epoch for body in master.asked if isinstance(body, c.Register)]
        assert asked == [-1, 3]

    run(script())
