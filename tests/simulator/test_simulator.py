"""The simulator itself: a seed is a history, and what is wrong is seen."""

from __future__ import annotations

import random

import pytest

from cachefs.core.errors import DeadlineExceeded, Unreachable
from cachefs.core.placement import Placement
from tests.simulator.failures import first_failure
from tests.simulator.history import History, run, sort_of
from tests.simulator.network import Done, Network
from tests.simulator.origin import BAD, File, make_file
from tests.simulator.schedule import Process, Schedule
from tests.simulator.worker import WorkerHost
from tests.simulator.world import World
from worker.migration.sender import MigrationSender
from worker.peers.source_selection import SourceSelection


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_seed_is_one_history(seed: int) -> None:
    first, second = run(seed).world, run(seed).world
    assert first.counts == second.counts
    assert first.schedule.steps == second.schedule.steps


def test_all_sorts_come_up() -> None:
    assert {sort_of(seed) for seed in range(4)} == {"calm", "tight", "rough"}


def test_a_wrong_byte_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulator.cache.Cache.read", lambda self, key, page: BAD)
    assert "bytes" in first_failure(run, range(0, 8, 4))


def test_a_block_that_is_not_handed_over_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MigrationSender, "_heirs", lambda *block: [])
    failure = first_failure(run, range(0, 80, 4))
    assert "its owner" in failure or "was read again" in failure


def test_a_copy_that_does_not_come_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MigrationSender, "_others", lambda *block: [])
    assert "its owner" in first_failure(run, range(0, 80, 4))


def test_what_asks_the_origin_first_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_nobody(self: SourceSelection, *args: object) -> list[object]:
        return [self._end()]

    monkeypatch.setattr(SourceSelection, "_next", ask_nobody)
    assert "from the origin, but" in first_failure(run, range(0, 8, 4))


def test_nodes_that_wait_for_each_other_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulator.worker.is_meant", lambda data, id: True)
    assert "wait for each other" in first_failure(run, range(1018, 1400, 4))


def test_an_eviction_without_permission_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulator.master.MasterHost.is_protected", lambda self, key: False)
    assert "protects was evicted" in first_failure(run, range(1, 200, 4))


def with_an_owner_that_is_cut_off() -> tuple[World, list[WorkerHost], Placement, list[File]]:
    """Returns a world whose first worker does not reach the origin until 100 s, its workers, the
    placement, and the files that this worker owns."""
    files = [make_file(ino, 110_000) for ino in range(2, 40)]
    world = World(5, files, calm=False, migration_bytes_per_s=1e9)
    world.master.start()
    hosts = [world.add(f"w{n}", 1.0, [1 << 30], "fill") for n in range(4)]
    world.schedule.run(10.0)
    placement = Placement(world.master.view().members)
    owned = [file for file in files if placement.owners(file.ino, 0, 1)[0].id == hosts[0].id]
    world.origin.cut_until_s[hosts[0].id] = 100.0
    return world, hosts, placement, owned


def test_readers_pass_by_an_owner_that_does_not_reach_the_origin() -> None:
    """At once after a second, all by way of the next in rank; the owner is asked again later."""
    world, hosts, _, owned = with_an_owner_that_is_cut_off()
    for file in owned[:-1]:
        for host in hosts[1:]:
            world.read(host, file, 0, 1)
        world.schedule.run(world.schedule.now_s + 5.0)
    assert (world.counts.reads, world.counts.failed) == (3 * len(owned[:-1]), 0)
    assert world.counts.longest_s < 2.0
    assert {len(world.origin.reads[file.key, 0]) for file in owned[:-1]} == {1}
    world.schedule.run(110.0)
    for host in hosts[1:]:
        world.read(host, owned[-1], 0, 1)
    world.schedule.run(120.0)
    assert 0 in hosts[0].disk.pages[owned[-1].key], "it fills again"


def test_the_own_readers_of_an_owner_that_does_not_reach_the_origin_use_the_next_in_rank() -> None:
    """Also the first one, after a second; the origin is asked once. The owner reads it itself when
    it can again, though no peer asks it."""
    world, hosts, placement, owned = with_an_owner_that_is_cut_off()
    for file in owned[:-1]:
        world.read(hosts[0], file, 0, 1)
        world.schedule.run(world.schedule.now_s + 5.0)
        next_one = placement.owners(file.ino, 0, 2)[1].id
        assert 0 in world.hosts[next_one].disk.pages[file.key], "it was asked to fill"
    assert (world.counts.reads, world.counts.failed) == (len(owned[:-1]), 0)
    assert world.counts.longest_s < 3.0
    assert {len(world.origin.reads[file.key, 0]) for file in owned[:-1]} == {1}
    world.schedule.run(110.0)
    world.read(hosts[0], owned[-1], 0, 1)
    world.schedule.run(112.0)
    served = hosts[0].served
    assert served is not None
    assert not served.reach.is_cut(112.0)


def test_the_failing_seed_and_its_story_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: History) -> None:
        self.world.say("something happened")
        raise AssertionError("told")

    monkeypatch.setattr(History, "_end", fail)
    with pytest.raises(
        AssertionError, match=r"seed 77 \(tight\).*told\n(.*\n)*.*something happened"
    ):
        run(77)


class Echo:
    """Answers what it is asked; `held` keeps the answers back."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.held: list[Done] | None = None

    def serve(self, request: object, reply: Done) -> None:
        if self.held is None:
            reply(request)
        else:
            self.held.append(reply)


def network() -> tuple[Schedule, Network, Process, Echo]:
    schedule = Schedule()
    net = Network(schedule, random.Random(1))
    server = Echo(Process(schedule, "there"))
    net.listen("http://there", server)
    return schedule, net, Process(schedule, "here"), server


def heard(net: Network, source: Process, schedule: Schedule, until_s: float = 9.0) -> list[object]:
    found: list[object] = []
    net.call(source, "http://there", "hello", found.append, limit_s=5.0)
    schedule.run(schedule.now_s + until_s)
    return found


def test_a_call_is_answered_once_even_if_it_comes_twice() -> None:
    schedule, net, source, _ = network()
    net.weather.twice = 1.0
    assert heard(net, source, schedule) == ["hello"]


def test_silence_ends_with_the_caller_s_limit() -> None:
    schedule, net, source, server = network()
    net.cut("here", "there")
    (answer,) = heard(net, source, schedule)
    assert isinstance(answer, DeadlineExceeded)
    net.heal()
    server.process.resumes_s = schedule.now_s + 100
    (answer,) = heard(net, source, schedule)
    assert isinstance(answer, DeadlineExceeded)


def test_a_dead_server_refuses_and_a_dying_one_breaks_off() -> None:
    schedule, net, source, server = network()
    server.held = []
    found: list[object] = []
    net.call(source, "http://there", "hello", found.append, limit_s=5.0)
    schedule.run(1.0)
    server.process.is_alive = False
    net.died(server.process)
    schedule.run(2.0)
    (answer,) = found
    assert isinstance(answer, Unreachable)
    (answer,) = heard(net, source, schedule, 1.0)
    assert isinstance(answer, Unreachable)


def test_who_ended_hears_nothing_and_who_is_stopped_hears_it_later() -> None:
    schedule, net, source, _ = network()
    found: list[object] = []
    net.call(source, "http://there", "one", found.append, limit_s=50.0)
    source.resumes_s = 7.0
    schedule.run(6.0)
    assert found == []
    schedule.run(8.0)
    assert found == ["one"]
    net.call(source, "http://there", "two", found.append, limit_s=50.0)
    source.is_alive = False
    schedule.run(99.0)
    assert found == ["one"]
