"""Random work on a cache of several tiers against the obvious model: a file reads as its bytes,
whatever moves, hangs, goes bad or is deleted underneath.

After each round no content is in two tiers, the accounts of each agree with its index, and nothing
that a client was given stays held.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import CacheFSError, NoSpace, Stale
from cachefs.core.tiers import TierSpec
from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, Reader, run, scrubber_of, until
from tests.unit.worker_tiers.rig import TiersRig, come_back, leave, open_reader, read
from worker.cache import tier as tier_module
from worker.cache.cache import Cache

LIMITS = (32 * MIB, 48 * MIB, 96 * MIB)
ROUNDS = 3
ROUND_S = 90.0  # some seeds write much, on a busy machine slowly
STEPS = 80
SIZES = (1, 5000, 200_000, MIB, 3 * MIB + 7, 8 * MIB, 11 * MIB + 1, 25 * MIB, 40 * MIB)


class Model:
    """The rig, what is open, which tiers hang, and the steps."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        limits = LIMITS[: self.random.choice([2, 3])]
        self.rig = TiersRig(
            directory,
            *limits,
            seed=seed,
            admission=self.random.choice(["fill", "always"]),
            eviction=self.random.choice(["sieve", "lru"]),
            idle_after_s=1000.0,
            origin_deadline_s=3.0,
        )
        low, high = sorted(self.random.choice([0.3, 0.5, 0.9, 1.0]) for _ in range(2))
        self.rig.specs = [
            TierSpec("ssd", spec.path, spec.limit_bytes, high, low) for spec in self.rig.specs
        ]
        self.tiers: Cache
        self.open: list[tuple[bytes, Reader]] = []
        self.hanging: list[Any] = []
        self.flips = True
        self.inos = list(range(1, 20))
        self.versions: dict[int, list[bytes]] = {ino: [] for ino in self.inos}
        for ino in self.inos:
            self.put(ino)

    def put(self, ino: int) -> None:
        self.rig.put(ino, self.random.choice(SIZES))
        self.versions[ino].append(self.rig.data[ino])

    def ino(self) -> int:
        return self.random.choice(self.inos[: self.random.choice([3, 19])])

    async def step(self) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[Any]]]] = [
            (12, self.read_whole),
            (4, self.load),
            (4, self.report),
            (4, self.look_after),
            (3, self.keep_open),
            (4, self.read_open),
            (3, self.close_one),
            (2, self.free),
            (1, self.change),
            (1, self.hang),
            (2, self.answer),
            (1, self.delete),
            (1, self.serve),
            (2, self.time_passes),
        ]
        weights = [weight for weight, _ in steps]
        await self.random.choices([step for _, step in steps], weights)[0]()

    # ---- what clients do ----

    async def read_whole(self) -> None:
        """The version at the start, or one that came meanwhile; never a mix."""
        ino = self.ino()
        since = len(self.versions[ino]) - 1
        try:
            data, _ = await read(self.tiers, ino, self.random.choice([64 << 10, MIB, 5 * MIB]))
            assert data in self.versions[ino][since:]
        except Stale:
            assert len(self.versions[ino]) > since + 1, "stale without a change"
        except NoSpace:
            assert self.open, "no space while nobody holds anything"

    async def load(self) -> None:
        try:
            await fetch(self.tiers, NAMESPACE, self.ino())
        except CacheFSError:
            return

    async def report(self) -> None:
        """As of opens by the kernel alone."""
        self.tiers.used([self.rig.name(self.ino())] * self.random.randrange(1, 4), 100)

    async def keep_open(self) -> None:
        if len(self.open) >= 4:
            return
        ino = self.ino()
        right = self.rig.data[ino]
        try:
            reader = await open_reader(self.tiers, ino)
        except Stale:
            return
        if self.rig.data[ino] is right:
            self.open.append((right, reader))
        else:
            reader.close()

    async def read_open(self) -> None:
        if not self.open:
            return
        right, reader = self.open.pop(self.random.randrange(len(self.open)))
        offset = self.random.randrange(len(right))
        size = self.random.choice([10, 4096, MIB, 3 * MIB])
        try:
            assert await reader.at(offset, size) == right[offset : offset + size]
        except (Stale, NoSpace):
            pass
        finally:
            self.open.append((right, reader))

    async def close_one(self) -> None:
        if self.open:
            self.open.pop(self.random.randrange(len(self.open)))[1].close()

    async def free(self) -> None:
        try:
            await self.tiers.free([self.rig.content(self.ino()) for _ in range(3)])
        except CacheFSError:
            return

    async def serve(self) -> None:
        """What a peer gets."""
        ino = self.ino()
        right = self.rig.data[ino]
        pages = await self.tiers.serving.here(self.rig.content(ino).key, 0, 4)
        if pages is not None:
            assert os.pread(pages.fd, pages.size_bytes, pages.offset) == right[: pages.size_bytes]
            pages.close()

    # ---- what else happens ----

    async def look_after(self) -> None:
        await self.tiers._moves.tick()
        await self.tiers._tiers.look()

    async def change(self) -> None:
        self.put(self.ino())

    async def hang(self) -> None:
        one = self.random.choice(self.tiers._tiers.running)
        if one.in_service and len(self.hanging) < 2:
            leave(one)
            self.hanging.append(one)

    async def answer(self) -> None:
        if self.hanging:
            one = self.hanging.pop()
            if not one.in_service:
                come_back(one)

    async def delete(self) -> None:
        """Somebody removes a tier's directory; the watch has not seen it yet, or has."""
        one = self.random.choice(self.tiers._tiers.running)
        if self.hanging or self.random.random() < 0.7:
            return
        remove_whole(one.spec.path)
        if one.in_service:
            leave(one)
        await self.tiers._tiers.look()

    async def time_passes(self) -> None:
        self.rig.wall_s += self.random.choice([1, 100, 5000])
        for one in self.tiers._tiers.running:
            await one.housekeeping.tick()

    # ---- rounds ----

    async def round(self) -> None:
        async with self.rig.tiers() as self.tiers:
            for _ in range(STEPS // 4):
                await asyncio.gather(*(self.step() for _ in range(4)))
                self.check_limits()
            while self.hanging:
                await self.answer()
            for _, reader in self.open:
                reader.close()
            self.open.clear()
            await self.settle()
            self.check()
            await self.flip_and_scrub()

    async def settle(self) -> None:
        keeper, moves = self.tiers._tiers, self.tiers._moves
        await until(lambda: self.tiers.status()["fills_in_flight"] == 0)
        await until(lambda: not moves._promotions._moving and not moves._making_room)
        await until(lambda: not any(one.is_used for one in keeper._retired))
        await keeper.look()
        await keeper.look()
        assert not keeper._retired, "nobody uses them any more"
        for one in keeper.running:
            await until(lambda one=one: len(one._catalog) == 0)
            one._leftovers.check(urgent=True)
        for one in keeper.running:
            if not one.in_service:  # a step left it and its own end was overtaken by another's
                come_back(one)
        # A tier that has just come back is swept once it knows what it has.
        await until(lambda: all(one.contents.order_known for one in keeper.running))
        moves._sweep_due = True
        for _ in range(20):
            for doubled in moves._doubled.values():
                doubled.due_s = 0.0
            await moves.tick()
            await until(lambda: not moves._making_room)
            if not moves._doubled and not moves._sweep_due:
                break
        assert not moves._doubled
        assert not moves._sweep_due
        for one in keeper.running:
            await asyncio.to_thread(one.disk.writer.write, [])

    def check_limits(self) -> None:
        for one in self.tiers._tiers.running:
            one.contents.ledger.check_invariants()
            assert one.contents.ledger.used_bytes <= one.spec.limit_bytes
        self.tiers._moves._promotions.check_invariants()

    def check(self) -> None:
        seen: set[bytes] = set()
        for one in self.tiers._tiers.running:
            assert one.users == 0
            assert one.contents.ledger.reserved_bytes == 0
            records = dict(one.disk.directory.index.scan(b"", 1000))
            assert set(one.contents.order.keys()) == set(records)
            assert one.contents.ledger.cached_bytes == sum(
                r.allocated_bytes for r in records.values()
            )
            assert not seen & set(records), "one content in two tiers"
            seen |= set(records)
        self.tiers._tiers._setting.shared.memory.check_invariants()

    async def flip_and_scrub(self) -> None:
        """A bit that flips in a published file is found, and the file read right again."""
        for one in self.tiers._tiers.running:
            for ino in [*self.rig.in_tier(one.index)][:2]:
                self.rig.flip(one.index, ino, self.random.randrange(len(self.rig.data[ino])))
            scrubber = scrubber_of(one, 1 << 40)
            while await scrubber.step():
                pass
        for ino in self.inos:
            assert (await read(self.tiers, ino))[0] == self.rig.data[ino]


def remove_whole(path: str) -> None:
    """Deletes a directory into which the tier may just write. Half of it would be neither a tier
    nor empty: the cache refuses to start on it."""
    for _ in range(100):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.exists(path):
            return
    raise AssertionError(f"{path} cannot be deleted")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("attempt", range(2))
def test_a_file_reads_as_its_bytes_whatever_its_tiers_do(
    tmp_path: Path, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tiers are only said to hang here: every thread ends, on a busy machine a little later.
    monkeypatch.setattr(tier_module, "HANGING_WAIT_S", tier_module.CLOSE_WAIT_S)
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    model = Model(tmp_path, seed)
    for _ in range(ROUNDS):
        run(model.round(), ROUND_S)
