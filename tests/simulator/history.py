"""Histories from seeds: what sort of world, what happens in it, and its end.

Three sorts: *calm* ones, in which workers join and are drained one at a time and nothing is lost,
so every byte must come from the origin once and end at its owner; *tight* ones, with small caches;
and *rough* ones, with crashes, stops, partitions, loss, flipped bits, and an origin and a master
that go away.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulator import master
from tests.simulator.origin import ORIGIN_S, PAGE_BYTES, File, make_file
from tests.simulator.worker import WorkerHost
from tests.simulator.world import World

MIB = 1 << 20
GIB = 1 << 30
CALM_START_S = 10.0  # the first workers have found each other
SETTLE_S = 30.0  # calm: for what is to be moved
PAUSE_S = 12.0  # longer than a lost worker is not known to be lost
LAST_READS_S = 15.0
QUIET_S = 400.0  # rough: for who must be found lost, and for takers that are given up
SIZES = (1, 110_000, 110_000, MIB, 3 * MIB + 7, 12 * MIB)
LARGE = 600 * PAGE_BYTES


@dataclass(frozen=True)
class Outcome:
    """A history that went well."""

    seed: int
    sort: str
    world: World


def sort_of(seed: int) -> str:
    return ("calm", "tight", "rough", "rough")[seed % 4]


def run(seed: int, *, tracing: bool = False) -> Outcome:
    """Raises AssertionError, with the seed and the end of the story."""
    history = History(seed, tracing=tracing)
    tell(history, f"seed {seed} ({sort_of(seed)})")
    return Outcome(seed, sort_of(seed), history.world)


def tell(history: History, name: str) -> None:
    """Runs a history. Raises AssertionError, with its name and the end of its story."""
    try:
        history.run()
    except (LookupError, TypeError, ValueError) as err:
        err.add_note(name)
        raise
    except AssertionError as err:
        story = "\n".join(history.world.counts.said[-40:])
        what = str(err) or traceback.format_exc(limit=-2)
        now_s = history.world.schedule.now_s
        raise AssertionError(f"{name}, {now_s:.3f} s: {what}\n{story}") from err


class History:
    """One of them."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.sort = sort_of(seed)
        self.random = random.Random(seed ^ 0xC0FFEE)
        files = self._files()
        rate = self.random.choice([20, 200, 2000]) * MIB
        self.world = World(
            seed, files, calm=self.sort != "rough", migration_bytes_per_s=float(rate)
        )
        self.world.tracing = tracing
        for file in files:
            self.world.replicas[file.key] = self.random.choice([1, 1, 2, 3])
        self.files = files
        self._workers = self._lost = 0
        self._until_s = CALM_START_S + self.random.uniform(2.0, 20.0)

    def _files(self) -> list[File]:
        sizes = [self.random.choice(SIZES) for _ in range(self.random.randint(4, 10))]
        if self.random.random() < 0.2:
            sizes.append(LARGE)
        return [make_file(ino, size) for ino, size in enumerate(sizes, 2)]

    def _limits_bytes(self) -> list[int]:
        """Of one tier, or of a small one before a larger one."""
        limit_bytes = self._limit_bytes()
        if self.random.random() < 0.7:
            return [limit_bytes]
        return [max(4 * MIB, limit_bytes // 4), limit_bytes]

    def _limit_bytes(self) -> int:
        if self.sort == "calm":
            return 4 * GIB
        total = sum(file.size_bytes for file in self.files)
        share = self.random.choice([0.3, 0.6, 1.5] if self.sort == "tight" else [0.6, 3.0])
        return int(max(8 * MIB, share * total))

    def run(self) -> None:
        world = self.world
        world.master.start()
        for _ in range(self.random.randint(1, 4)):
            self._add()
        if self.sort == "rough":
            self._weather()
        world.schedule.run(CALM_START_S if self.sort == "calm" else 1.0)
        while world.schedule.now_s < self._until_s:
            self._something()
            pause_s = self.random.expovariate(3.0)
            world.schedule.run(world.schedule.now_s + pause_s)
            world.check_reads()
        self._end()

    def _weather(self) -> None:
        weather = self.world.network.weather
        weather.loss = self.random.choice([0.0, 0.0, 0.01, 0.05])
        weather.twice = self.random.choice([0.0, 0.02])
        weather.spread_s = self.random.choice([0.001, 0.01, 0.1])
        self.world.garbling = self.random.choice([0.0, 0.0, 0.01])
        self.world.fault(f"weather: {weather}")

    def _end(self) -> None:
        """Everything that is broken is mended, and time passes."""
        world = self.world
        if self.sort != "calm":
            self._mend()
        limit_s = world.schedule.now_s + (SETTLE_S if self.sort == "calm" else QUIET_S)
        world.schedule.run(world.schedule.now_s + PAUSE_S)
        while not world.is_quiet and world.schedule.now_s < limit_s:
            world.schedule.run(world.schedule.now_s + PAUSE_S)
            world.check_reads()
        world.check_end()
        self._read_all()
        assert not world.readings, "what is whole again cannot be read"
        world.count_all()
        if self.sort == "calm":
            world.check_places()
            world.check_read_once()

    def _mend(self) -> None:
        world = self.world
        world.say("mended")
        weather = world.network.weather
        weather.loss = weather.twice = world.garbling = 0.0
        world.network.heal()
        world.origin.down_until_s = min(world.origin.down_until_s, world.schedule.now_s)
        for host, until_s in world.origin.cut_until_s.items():
            world.origin.cut_until_s[host] = min(until_s, world.schedule.now_s)
        world.origin.latency_s = ORIGIN_S
        world.master.start()

    def _read_all(self) -> None:
        """All that is up can read everything again."""
        for file in self.files:
            for host in [*self.world.hosts.values()]:
                self.world.read(host, file, 0, 1)
        self.world.schedule.run(self.world.schedule.now_s + LAST_READS_S)

    # ---- what happens ----

    def _something(self) -> None:
        steps = self._steps()
        weights = [weight for weight, _ in steps]
        self.random.choices([step for _, step in steps], weights)[0]()

    def _steps(self) -> list[tuple[float, Callable[[], None]]]:
        """What may happen, and how likely it is."""
        steps: list[tuple[float, Callable[[], None]]] = [(20, self._read), (6, self._read_by_all)]
        steps += [(0.7, self._add), (0.5, self._drain), (0.4, self._set_replicas)]
        if self.sort != "calm":
            steps += [(1, self._protect), (0.3, self._leave)]
        if self.sort == "rough":
            steps += [
                (0.8, self._crash), (1, self._restart), (0.6, self._stop), (0.6, self._cut),
                (0.6, self._heal), (0.4, self._crash_master), (1, self._start_master),
                (0.3, self._origin_down), (0.5, self._cut_from_origin), (0.5, self._flip),
                (0.4, self._slow), (0.3, self._slow_disk), (0.3, self._slow_origin),
                (0.2, self._lose_disk),
            ]  # fmt: skip
        return steps

    def _host(self, *, up: bool = True) -> WorkerHost | None:
        hosts = [host for host in self.world.hosts.values() if host.is_up is up]
        return self.random.choice(hosts) if hosts else None

    def _read(self) -> None:
        host = self._host()
        if host is not None:
            self._read_some(host, self.random.choice(self.files))

    def _read_some(self, host: WorkerHost, file: File) -> None:
        first = self.random.randrange(file.pages)
        end = min(file.pages, first + self.random.choice([1, 4, 12]))
        self.world.say(f"{host.id} reads pages {first} to {end} of ino {file.ino}")
        self.world.read(host, file, first, end)

    def _read_by_all(self) -> None:
        file = self.random.choice(self.files)
        for host in [*self.world.hosts.values()]:
            if host.is_up:
                self.world.read(host, file, 0, min(file.pages, 12))
        self.world.say(f"all read ino {file.ino}")

    def _may_change(self) -> bool:
        """In a calm history one change is over before the next begins, and no read is under way."""
        world = self.world
        return self.sort != "calm" or not (world.master.view().before or world.readings)

    def _add(self) -> None:
        if self._workers >= 8 or not self._may_change():
            return
        self._workers += 1
        weight = self.random.choice([1.0, 1.0, 1.0, 2.0, 0.0])
        if self._workers == 1:
            weight = 1.0
        id = f"w{self._workers}"
        admission = self.random.choice(["fill", "always"])
        self.world.say(f"{id} joins with weight {weight}")
        self.world.add(id, weight, self._limits_bytes(), admission)

    def _owning(self) -> list[WorkerHost]:
        if not self.world.master.is_up:
            return []
        members = self.world.master.view().members
        hosts = self.world.hosts
        return [hosts[one.id] for one in members if one.id in hosts]

    def _drain(self) -> None:
        owning = self._owning()
        if len(owning) > 1 and self._may_change():
            host = self.random.choice(owning)
            self.world.say(f"{host.id} is drained")
            self.world.drain(host.id)

    def _set_replicas(self) -> None:
        file, count = self.random.choice(self.files), self.random.randint(1, 3)
        self.world.say(f"{count} workers are to own ino {file.ino}")
        self.world.set_replicas(file, count)

    def _leave(self) -> None:
        owning = self._owning()
        if len(owning) > 1:
            host = self.random.choice(owning)
            self.world.say(f"{host.id} leaves")
            host.leave()

    def _protect(self) -> None:
        file = self.random.choice(self.files)
        if self.world.master.protect(file.key):
            self.world.say(f"ino {file.ino} is protected")

    # ---- what goes wrong ----

    def _crash(self) -> None:
        host = self._host()
        if host is not None:
            self.world.fault(f"{host.id} dies")
            host.crash()

    def _restart(self) -> None:
        host = self._host(up=False)
        if host is not None:
            self.world.say(f"{host.id} starts again")
            host.start()

    def _stop(self) -> None:
        host = self._host()
        if host is not None and host.served is not None:
            for_s = self.random.choice([0.5, 4.0, 15.0])
            self.world.fault(f"{host.id} is stopped for {for_s} s")
            host.served.process.resumes_s = self.world.schedule.now_s + for_s

    def _cut(self) -> None:
        host = self._host()
        if host is None:
            return
        others = [id for id in (*self.world.hosts, master.HOST) if id != host.id]
        cut = self.random.sample(others, self.random.randint(1, len(others)))
        self.world.fault(f"{host.id} is cut off from {', '.join(cut)}")
        one_way = self.random.random() < 0.3
        for other in cut:
            self.world.network.cut(host.id, other)
            if not one_way:
                self.world.network.cut(other, host.id)

    def _heal(self) -> None:
        self.world.say("the network is whole")
        self.world.network.heal()

    def _slow(self) -> None:
        host = self._host()
        if host is not None:
            self.world.fault(f"{host.id} answers slowly")
            self.world.network.slow(host.id, self.random.choice([0.05, 0.5, 2.0]))

    def _slow_disk(self) -> None:
        host = self._host()
        if host is not None:
            self.world.fault(f"the disk of {host.id} is slow")
            host.disk.answer_s = self.random.choice([0.05, 0.5, 4.0])

    def _slow_origin(self) -> None:
        self.world.fault("the origin is slow")
        self.world.origin.latency_s = self.random.choice([0.2, 2.0])

    def _lose_disk(self) -> None:
        """The machine comes back with an empty disk, and so as somebody else."""
        host = self._host()
        if host is not None:
            self._lost += 1
            self.world.fault(f"{host.id} loses its disk")
            self.world.replace(host, f"{host.id}.{self._lost}")

    def _crash_master(self) -> None:
        self.world.fault("the master dies")
        self.world.master.crash()

    def _start_master(self) -> None:
        if not self.world.master.is_up:
            self.world.say("the master starts again")
            self.world.master.start()

    def _origin_down(self) -> None:
        for_s = self.random.choice([1.0, 10.0])
        self.world.fault(f"the origin is down for {for_s} s")
        self.world.origin.down_until_s = self.world.schedule.now_s + for_s

    def _cut_from_origin(self) -> None:
        host = self._host()
        if host is not None:
            for_s = self.random.choice([3.0, 30.0])
            self.world.fault(f"{host.id} does not reach the origin for {for_s} s")
            self.world.origin.cut_until_s[host.id] = self.world.schedule.now_s + for_s

    def _flip(self) -> None:
        """A page that nobody reads just now has other bytes on the disk."""
        host = self._host()
        if host is None or not host.disk.pages:
            return
        key = self.random.choice(sorted(host.disk.pages))
        page = self.random.choice(sorted(host.disk.pages[key]))
        if host.served is not None and key not in host.served.cache.users:
            self.world.fault(f"a bit of page {page} flips at {host.id}")
            host.disk.flip(key, page)
