"""Random work on one tier against the obvious model: a file reads as its bytes, whatever happened.

Readers, loads, frees, changes at the origin, cut connections, restarts and crashes of the machine,
on a cache that is too small, with clients that keep files and segments open. After each round the
accounts must agree with the index and the disk.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import CacheFSError, NoSpace, Stale, Unavailable
from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, Reader, Rig, only, open_reader, read, run, until
from worker.cache.cache import Cache
from worker.cache.load_requests import Load, Loaded, Missing
from worker.store import filesystem
from worker.store.holds import Hold

LIMIT = 48 * MIB
ROUNDS = 5
ROUND_S = 90.0  # some seeds write much, on a busy machine slowly
STEPS = 60
SIZES = (1, 5000, 200_000, MIB, 3 * MIB + 7, 8 * MIB, 11 * MIB + 1, 25 * MIB)


class Model:
    """The rig, what is open, and the steps."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = Rig(
            directory,
            LIMIT,
            seed=seed,
            admission=self.random.choice(["fill", "always"]),
            eviction=self.random.choice(["sieve", "lru"]),
            idle_after_s=1000.0,
            origin_deadline_s=3.0,
        )
        self.worker: Cache
        self.open: list[tuple[bytes, Reader]] = []
        self.inos = list(range(1, 25))
        self.versions: dict[int, list[bytes]] = {ino: [] for ino in self.inos}
        for ino in self.inos:
            self.put(ino)

    def put(self, ino: int) -> None:
        self.rig.put(ino, self.random.choice(SIZES))
        self.versions[ino].append(self.rig.data[ino])

    def ino(self) -> int:
        return self.random.choice(self.inos)

    async def step(self) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[Any]]]] = [
            (10, self.read_whole),
            (8, self.read_somewhere),
            (3, self.load),
            (3, self.load_and_hold),
            (3, self.keep_open),
            (4, self.read_open),
            (3, self.close_one),
            (2, self.free),
            (1, self.change),
            (2, self.cut),
            (2, self.give_up),
            (2, self.time_passes),
            (1, self.protect),
        ]
        weights = [weight for weight, _ in steps]
        await self.random.choices([step for _, step in steps], weights)[0]()

    async def read_whole(self) -> None:
        """The version at the start, or one that came meanwhile; never a mix."""
        ino = self.ino()
        since = len(self.versions[ino]) - 1
        step = self.random.choice([64 << 10, MIB, 5 * MIB])
        try:
            assert await read(self.worker, ino, step) in self.versions[ino][since:]
        except Stale:
            assert len(self.versions[ino]) > since + 1, "stale without a change"
        except NoSpace:
            assert self.open, "no space while nobody holds anything"

    async def opened(self) -> tuple[bytes, Reader] | None:
        """A file open, and the bytes that it must have."""
        ino = self.ino()
        right = self.rig.data[ino]
        try:
            reader = await open_reader(self.worker, ino)
        except Stale:
            return None
        if self.rig.data[ino] is not right:
            reader.close()  # it changed in between: who knows which one this is
            return None
        return right, reader

    async def read_somewhere(self) -> None:
        if (found := await self.opened()) is not None:
            right, reader = found
            try:
                await self.read_at(reader, right)
            finally:
                reader.close()

    async def read_at(self, reader: Reader, right: bytes) -> None:
        for _ in range(self.random.randrange(1, 4)):
            offset = self.random.randrange(len(right))
            size = self.random.choice([10, 4096, MIB, 3 * MIB])
            try:
                assert await reader.at(offset, size) == right[offset : offset + size]
            except (Stale, NoSpace):
                return

    async def load(self) -> None:
        ino = self.ino()
        try:
            await fetch(self.worker, NAMESPACE, ino)
        except (NoSpace, Stale):
            return

    async def load_and_hold(self) -> None:
        """As a load job does."""
        hold = Hold(self.rig.wall_s + self.random.choice([50, 5000]), self.random.random() < 0.2)
        ended: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        origin = self.rig.space.origins[self.ino()]
        load = Load(origin, -1, hold, None, lambda: None, ended.set_result)
        self.worker.loading.load(load)
        error = (await ended).error
        assert error is None or isinstance(error, (NoSpace, Stale, Missing, Unavailable)), error

    async def keep_open(self) -> None:
        if len(self.open) < 5 and (found := await self.opened()) is not None:
            self.open.append(found)

    async def read_open(self) -> None:
        if self.open:
            right, reader = self.open.pop(self.random.randrange(len(self.open)))
            await self.read_at(reader, right)
            self.open.append((right, reader))

    async def close_one(self) -> None:
        if self.open:
            self.open.pop(self.random.randrange(len(self.open)))[1].close()

    async def free(self) -> None:
        count = self.random.randrange(1, 6)
        await self.worker.free([self.rig.content(self.ino()) for _ in range(count)])

    async def change(self) -> None:
        """Another object at the origin: the namespace learns of it, open handles have the old."""
        self.put(self.ino())

    async def cut(self) -> None:
        path = self.rig.space.origins[self.ino()].path
        self.rig.origin.script.cut(path, self.random.randrange(1, 4 * MIB))

    async def give_up(self) -> None:
        task = asyncio.ensure_future(read(self.worker, self.ino()))
        await asyncio.sleep(self.random.random() * 0.003)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            assert isinstance(task.exception(), CacheFSError | None)

    async def time_passes(self) -> None:
        self.rig.wall_s += self.random.choice([1, 100, 5000])
        await only(self.worker).housekeeping.tick()

    async def protect(self) -> None:
        self.rig.space.protected = {self.rig.name(self.ino()) for _ in range(4)}

    # ---- rounds ----

    async def round(self) -> None:
        async with self.rig.worker() as self.worker:
            for _ in range(STEPS // 4):
                await asyncio.gather(*(self.step() for _ in range(4)))
                self.check_limit()
            for _, reader in self.open:
                reader.close()
            self.open.clear()
            await self.settle()
            self.check_accounts()

    async def settle(self) -> None:
        worker = self.worker
        await until(lambda: worker.status()["fills_in_flight"] == 0)
        await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
        only(worker)._leftovers.check(urgent=True)
        await until(lambda: worker.status()["tiers"][0]["unlinked_bytes"] == 0)
        await asyncio.to_thread(only(worker).disk.writer.write, [])

    def check_limit(self) -> None:
        ledger = only(self.worker).contents.ledger
        ledger.check_invariants()
        assert self.rig.disk_bytes() <= LIMIT
        assert ledger.used_bytes <= LIMIT

    def check_accounts(self) -> None:
        worker, one = self.worker, only(self.worker)
        assert one.contents.ledger.reserved_bytes == 0
        real = 0
        records = dict(one.disk.directory.index.scan(b"", 1000))
        for fan in one.disk.directory.fans():
            for name in one.disk.directory.names(fan):
                real += os.stat(self.rig.tier / "files" / fan / name).st_blocks * 512
                assert bytes.fromhex(name) in records, "a file without a record"
        cached = one.contents.ledger.cached_bytes
        assert one.disk.directory.index.totals().allocated_bytes == cached
        assert cached == sum(record.allocated_bytes for record in records.values())
        # A disk may need another block for a file when it writes it back.
        assert cached <= real <= cached + 4096 * len(records)
        assert set(only(worker).contents.order._slot) == set(records)  # type: ignore[attr-defined]
        for key in one.contents.order.keys():  # noqa: SIM118
            assert not one.contents.order.held(key)[0] or records[key].held_until_s, (
                "it forgets a hold"
            )
        for name in self.rig.published():
            assert records[bytes.fromhex(name)].complete


@pytest.mark.timeout(300)
@pytest.mark.parametrize("attempt", range(4))
def test_a_file_reads_as_its_bytes_whatever_happens(
    tmp_path: Path, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    model = Model(tmp_path, seed)
    for number in range(ROUNDS):
        boot = (number // 2).to_bytes(16, "big")
        monkeypatch.setattr(filesystem, "boot_id", lambda boot=boot: boot)
        run(model.round(), ROUND_S)
