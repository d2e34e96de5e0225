"""Random changes of a store that reports them all, beside readers, syncs and failures of the store:
afterwards every name is right, long before any interval ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import CacheFSError, NotADirectory, NotFound, Unreachable
from cachefs.core.model import Kind, UfsSpec
from master.namespace import Master
from master.push import look_again
from tests.integration.test_look_again import play
from tests.integration.test_master import Clock, names_of
from tests.integration.test_mount_table import Origin

SEEDS = range(24)
STEPS = 160
LIMIT_S = 30.0
DIRECTORIES = (b"", b"a/", b"a/b/", b"a/b/c/", b"e/", b"e/n/", b"e/n/m/")
FILES = [head + name for head in DIRECTORIES for name in (b"0", b"1", b"2", b"b", b"zz")]
NAMES = [*FILES, b"a", b"e"]  # objects beside directories of their names


class History:
    """One master, its readers in flight, and the changes that were not reported yet."""

    def __init__(self, seed: int, master: Master, clock: Clock, origin: Origin) -> None:
        self.chance = random.Random(seed)
        self.master = master
        self.clock = clock
        self.origin = origin
        self.unreported: list[bytes] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(CacheFSError):
                await work

        self.tasks.add(task := asyncio.ensure_future(quietly()))
        task.add_done_callback(self.tasks.discard)

    async def step(self) -> None:
        self.clock.now += self.chance.choice((0.0, 0.0, 0.5, 30.0))
        name = self.chance.choice(NAMES)
        match self.chance.randrange(11):
            case 0 | 1:
                self.origin.put(name, self.chance.randbytes(self.chance.randint(1, 5)))
                self.unreported.append(name)
            case 2 | 3:
                whole = self.chance.random() < 0.3
                self.delete([one for one in self.objects() if _is_at(one, name, below=whole)])
            case 4 | 5:
                self.begin(self.master.resolve(b"/data/" + name))
            case 6:
                self.begin(self.list(name.rpartition(b"/")[0]))
            case 7 | 8:
                self.report(self.chance.randint(0, len(self.unreported)))
            case 9:
                path = b"/data/" + name.rpartition(b"/")[0]
                self.begin(self.master.start_sync(path, recursive=True, dry_run=False))
            case _ if self.chance.random() < 0.4:
                verb, times = self.chance.choice(("stat", "list_dir")), self.chance.randint(1, 3)
                self.origin.fail(verb, None, Unreachable("no route"), times=times)
        for _ in range(self.chance.choice((0, 1, 3, 10, 100))):
            await asyncio.sleep(0)

    def objects(self) -> list[bytes]:
        return [*self.origin._objects]

    def delete(self, names: list[bytes]) -> None:
        for name in names:
            with self.origin._lock:
                del self.origin._objects[name]
                self.origin._unlink(name)
        self.unreported += names

    def report(self, count: int) -> None:
        """Reports some changes, in any order."""
        self.chance.shuffle(self.unreported)
        names, self.unreported = self.unreported[:count], self.unreported[count:]
        self.begin(self.master.mounts.look_again(b"/data", names))

    async def list(self, path: bytes) -> None:
        found = (await self.master.resolve(b"/data/" + path)).inode
        if found is not None and found.kind is Kind.DIRECTORY:
            await names_of(self.master, found.ino)

    async def end(self) -> None:
        """Reports the rest, and waits until nothing is in flight."""
        self.origin.script._faults.clear()
        self.report(len(self.unreported))
        sync = self.master._sync
        async with asyncio.timeout(LIMIT_S):
            while self.tasks or len(sync.unchecked) or sync._tasks.keys() - sync._waiting:
                await asyncio.sleep(0.001)

    async def shown(self, path: bytes) -> int | None:
        """Returns the size of a file, -1 for a directory, None for a name that is not there."""
        with contextlib.suppress(NotADirectory):
            found = (await self.master.resolve(b"/data/" + path)).inode
            if found is not None:
                return -1 if found.kind is Kind.DIRECTORY else found.size
        return None

    def stored(self, path: bytes) -> int | None:
        """Returns the same, of the origin."""
        with contextlib.suppress(NotFound):
            fingerprint = self.origin._entry(path).fingerprint
            return -1 if fingerprint.kind is Kind.DIRECTORY else fingerprint.size
        return None

    async def tree(self, path: bytes = b"") -> set[bytes]:
        """Returns all paths that listings show at or below a path."""
        if await self.shown(path) != -1:
            return {path}
        inode = (await self.master.resolve(b"/data/" + path)).inode
        assert inode is not None
        paths = {path}
        for name in await names_of(self.master, inode.ino):
            paths |= await self.tree(path + b"/" + name if path else name)
        return paths


def _is_at(one: bytes, name: bytes, *, below: bool) -> bool:
    return one == name or (below and one.startswith(name + b"/"))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_name_is_right_once_all_changes_were_reported(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also names of which nobody asked, and directories that ended."""
    for name in ("GATHER_S", "LONGEST_GATHER_S", "RETRY_S"):
        monkeypatch.setattr(look_again, name, 0.002)
    monkeypatch.setattr(look_again, "CROWD", (2, 3, 8)[seed % 3])
    origin = Origin({b"keep": b"1"}, page_entries=(1, 2, 1000)[seed % 3])

    async def script(master: Master, clock: Clock) -> None:
        if seed % 2:
            inner = UfsSpec("s3://inner")
            await master.add_ufs(b"/data/e/n/inner", inner, Origin({b"f": b"1"}), 3600.0)
        history = History(seed, master, clock, origin)
        for _ in range(STEPS):
            await history.step()
        await history.end()
        held = {b"e", b"e/n"} if seed % 2 else set[bytes]()
        for name in NAMES:
            assert await history.shown(name) == (-1 if name in held else history.stored(name)), name
        tree = {path for path in await history.tree() if not path.startswith(b"e/n/inner")}
        files = {one for one in history.objects() if history.stored(one) != -1} - held
        above = {
            b"/".join(one.split(b"/")[:n]) for one in files for n in range(one.count(b"/") + 1)
        }
        assert tree == files | above | held

    play(tmp_path, origin, script)
