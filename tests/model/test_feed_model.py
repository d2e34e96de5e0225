"""A store whose events are late, come twice, out of order, or never, beside readers. A name whose
last change was reported is as the origin has it, long before the sync interval ends; all others are
so after it."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from cachefs.core.errors import Stale
from cachefs.core.model import ROOT_INO, UfsSpec
from master.namespace import Master
from master.push import look_again
from master.push.work_budget import WorkBudget
from tests.integration.test_master import Clock, names_of, run
from tests.integration.test_mount_table import Origin, cluster

SEEDS = range(12)
STEPS = 120
INTERVAL_S = 3600.0
NAMES = [
    b"%s/f%d" % (directory, number) for directory in (b"a", b"b", b"b/c") for number in range(3)
]
LOST = 0.2  # of the events
X = UfsSpec("s3://x")


class Feed:
    """The events that are under way. `unsure`: names whose last change was not delivered yet."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.waiting: list[bytes] = []
        self.unsure: set[bytes] = set()

    def change(self, name: bytes) -> None:
        self.unsure.add(name)
        self.waiting = [one for one in self.waiting if one != name]  # an older one proves nothing
        if self._chance.random() >= LOST:
            self.waiting += [name] * self._chance.randint(1, 2)

    async def deliver(self, master: Master, most: int) -> None:
        """Delivers some of them, in any order."""
        self._chance.shuffle(self.waiting)
        sent, self.waiting = self.waiting[:most], self.waiting[most:]
        await master.mounts.look_again(b"/data", [*sent, b"a/never-there"])
        self.unsure -= {*sent}


class World:
    def __init__(self, master: Master, origin: Origin, chance: random.Random) -> None:
        self.master = master
        self.origin = origin
        self.chance = chance
        self.feed = Feed(chance)
        self.bytes: dict[bytes, bytes] = {}

    async def step(self) -> None:
        name = self.chance.choice(NAMES)
        match self.chance.randrange(6):
            case 0 | 1:
                self.bytes[name] = self.chance.randbytes(self.chance.randint(1, 9))
                self.origin.put(name, self.bytes[name])
                self.feed.change(name)
            case 2 if name in self.bytes:
                del self.bytes[name]
                self.origin.delete(name)
                self.feed.change(name)
            case 3:
                await self.size_of(name)
            case 4:
                await self.list_names(name.rpartition(b"/")[0])
            case _:
                await self.feed.deliver(self.master, self.chance.randint(1, 3))

    async def size_of(self, name: bytes) -> int | None:
        found = (await self.master.resolve(b"data/" + name)).inode
        return None if found is None else found.size

    async def list_names(self, directory: bytes) -> None:
        for _ in range(2):  # as the kernel does: a directory that has just ended is looked up again
            found = (await self.master.resolve(b"data/" + directory)).inode
            if found is None:
                return
            with contextlib.suppress(Stale):
                await names_of(self.master, found.ino)
                return

    async def check(self, names: list[bytes]) -> None:
        for name in names:
            size = len(self.bytes[name]) if name in self.bytes else None
            assert await self.size_of(name) == size, name


@pytest.mark.parametrize("seed", SEEDS)
def test_the_namespace_follows_what_is_reported(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some names are compared at once, others are recorded as unchecked, as chance decides, and
    where several are of one directory."""
    decided = random.Random(seed)
    monkeypatch.setattr(look_again, "CROWD", decided.randint(2, 4))
    monkeypatch.setattr(look_again, "GATHER_S", decided.choice((0.0, 0.01)))
    monkeypatch.setattr(WorkBudget, "take", lambda *_: decided.random() < 0.5)
    monkeypatch.setattr(WorkBudget, "wait_s", lambda *_: decided.choice((0.0, 0.0, 0.01)))

    async def work() -> None:
        clock, origin = Clock(), Origin()
        async with cluster(tmp_path, clock, origin) as master:
            origin.put(b"keep", b"1")
            await master.add_ufs(b"/data", X, origin, INTERVAL_S)
            world = World(master, origin, random.Random(seed))
            for _ in range(STEPS):
                await world.step()
            await world.feed.deliver(master, len(world.feed.waiting))
            sure = [name for name in NAMES if name not in world.feed.unsure]
            assert sure, "some events are never lost"
            await world.check(sure)
            clock.now += INTERVAL_S + 1
            await world.check(NAMES)
            found = {path async for batch in master.walk(ROOT_INO) for path, _ in batch}
            assert found == {b"data/keep", *(b"data/" + name for name in world.bytes)}

    run(work())
