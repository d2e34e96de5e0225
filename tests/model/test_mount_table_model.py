"""The mount table against a model: random sources come and go at random paths, with a walk under
way, and their origins change. After each step the namespace shows what the mount table means, no
ino ever belongs to two sources, files that stayed keep their inos, and the store's tables agree
with each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given, settings

from cachefs.core.errors import InUse, NotADirectory, NotFound, Stale
from cachefs.core.model import ROOT_INO, Inode, Kind, UfsSpec
from master.namespace import Master
from master.state.records import EVERYTHING, decode_dentry, dentry_key, ino_key
from master.store.base import Table
from master.store.snapshot import Names
from tests.services.memory import MemoryConnector
from tests.services.memory_store import MemoryStore

DEADLINE_S = 60.0
INTERVAL_S = 60.0
NAMES = st.sampled_from([b"a", b"b", b"c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
MOUNT_PATHS = st.lists(NAMES, max_size=3).map(b"/".join)
SOURCES = st.integers(0, 3)
TURNS = st.integers(0, 40)


@dataclass(frozen=True)
class Add:
    path: bytes
    source: int
    turns: int  # of the loop, between the begin of a walk and the step


@dataclass(frozen=True)
class Remove:
    path: bytes
    turns: int


@dataclass(frozen=True)
class Put:
    source: int
    path: bytes


@dataclass(frozen=True)
class Delete:
    source: int
    path: bytes


STEPS = st.lists(
    st.builds(Add, MOUNT_PATHS, SOURCES, TURNS)
    | st.builds(Add, MOUNT_PATHS, SOURCES, TURNS)
    | st.builds(Remove, MOUNT_PATHS, TURNS)
    | st.builds(Put, SOURCES, PATHS)
    | st.builds(Delete, SOURCES, PATHS),
    max_size=14,
)
Step = Add | Remove | Put | Delete


def prefixes(path: bytes) -> Iterator[bytes]:
    """The directories above a path, from the namespace root down."""
    segments = path.split(b"/") if path else []
    for depth in range(len(segments)):
        yield b"/".join(segments[:depth])


def below(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


class Model:
    """What must be seen."""

    def __init__(self) -> None:
        self.files: list[set[bytes]] = [{b"a/b", b"b"}, {b"a", b"b/c"}, {b"c/c/c"}, {b"a/a/a"}]
        self.mounts: dict[bytes, tuple[int, int]] = {}  # path -> source, a number never used again
        self.drawn = 0

    def held(self) -> set[bytes]:
        return {b"", *self.mounts} | {p for path in self.mounts for p in prefixes(path)}

    def seen(self) -> dict[bytes, tuple[int, int, bytes]]:
        """Files: path -> (number of the mount, source, path there)."""
        held = self.held()
        seen = {}
        for root, (source, number) in self.mounts.items():
            directories = {p for file in self.files[source] for p in prefixes(file)}
            for file in self.files[source] - directories:
                path = below(root, file)
                nearest = max((p for p in prefixes(path) if p in self.mounts), key=len)
                if nearest == root and path not in held:
                    seen[path] = (number, source, file)
        return seen

    def directories(self) -> set[bytes]:
        return self.held() | {p for file in self.seen() for p in prefixes(file)}


class Bench:
    """A master over a model's origins."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.model = Model()
        self.origins = [self._origin(n) for n in range(len(self.model.files))]
        self.store = MemoryStore()
        self.master = Master(self.store, INTERVAL_S, lambda: self.now)
        self.owners: dict[int, tuple[int, bytes]] = {}  # ino -> number of the mount, path

    def _origin(self, source: int) -> MemoryConnector:
        origin = MemoryConnector(page_entries=2, ordered=source != 1, posix=source == 2)
        for file in sorted(self.model.files[source]):
            origin.put(file, b"%d" % source + file)
        return origin

    async def step(self, step: Step) -> None:
        match step:
            case Add():
                await self._beside_a_walk(step.turns, self._add(step))
            case Remove():
                await self._beside_a_walk(step.turns, self._remove(step))
            case Put():
                self.now += INTERVAL_S + 1
                self.model.files[step.source].add(step.path)
                self.origins[step.source].put(step.path, b"%d" % step.source + step.path)
            case Delete():
                self.now += INTERVAL_S + 1
                files = self.model.files[step.source]
                if any(f == step.path or f.startswith(step.path + b"/") for f in files):
                    self.origins[step.source].delete(step.path)
                gone = {f for f in files if f == step.path or f.startswith(step.path + b"/")}
                self.model.files[step.source] -= gone

    async def _beside_a_walk(self, turns: int, work: Awaitable[None]) -> None:
        """What the walk sees is of before, of after, or neither; what it leaves in the store must
        not be."""
        walking = asyncio.ensure_future(self._walk())
        for _ in range(turns):
            await asyncio.sleep(0)
        await work
        await walking

    async def _walk(self) -> None:
        try:
            async for _ in self.master.walk(ROOT_INO):
                pass
        except Stale:
            pass  # the root's source changed under it

    async def _add(self, step: Add) -> None:
        model = self.model
        at = model.mounts.get(step.path)
        other = at is not None and at[0] != step.source
        blocked = at is None and any(p in model.seen() for p in prefixes(step.path))
        spec = UfsSpec(f"s3://{step.source}")
        try:
            added = await self.master.add_ufs(
                b"/" + step.path, spec, self.origins[step.source], INTERVAL_S
            )
        except InUse:
            assert other, step
        except NotADirectory:
            assert blocked, step
        else:
            assert not other, step
            assert not blocked, step
            assert added.root.kind is Kind.DIRECTORY
            if at is None:
                model.drawn += 1
                model.mounts[step.path] = (step.source, model.drawn)

    async def _remove(self, step: Remove) -> None:
        there = step.path in self.model.mounts
        try:
            await self.master.mounts.remove(step.path)
        except NotFound:
            assert not there, step
            return
        assert there, step
        _, number = self.model.mounts.pop(step.path)
        for ino in [ino for ino, (owner, _) in self.owners.items() if owner == number]:
            await self._is_stale(ino)

    async def _is_stale(self, ino: int) -> None:
        for ask in (self.master.getattr, self.master.locate):
            try:
                await ask(ino)
            except Stale:
                continue
            raise AssertionError(f"inode {ino} of a removed source still answers {ask}")

    async def check(self, before: dict[bytes, Inode]) -> dict[bytes, Inode]:
        """The namespace as it is seen now."""
        files = {p: inode async for batch in self.master.walk(ROOT_INO) for p, inode in batch}
        seen = self.model.seen()
        assert set(files) == set(seen)
        assert await self._directories() == self.model.directories()
        for path, inode in files.items():
            number, source, there = seen[path]
            assert self.owners.setdefault(inode.ino, (number, path)) == (number, path)
            at = await self.master.locate(inode.ino)
            assert (at.ufs, at.path) == (f"s3://{source}", there)
            old = before.get(path)
            if old is not None and self.owners[old.ino][0] == number:
                same = old.fingerprint == inode.fingerprint
                assert same == (old.ino == inode.ino), "a file that stayed keeps its ino"
        known = [p async for batch in self.master.known_files(ROOT_INO) for p, _ in batch]
        assert sorted(known) == sorted(seen)
        await self._check_tables()
        return files

    async def _directories(self) -> set[bytes]:
        """By lookups and listings from the root."""
        found = {b""}
        waiting = [(ROOT_INO, b"")]
        while waiting:
            ino, path = waiting.pop()
            listing = await self.master.list_dir(ino, b"", 1000)
            for name in [entry.name for entry in listing.entries]:
                inode = (await self.master.lookup(ino, name)).inode
                assert inode is not None, name
                if inode.kind is Kind.DIRECTORY:
                    waiting.append((inode.ino, below(path, name)))
                    found.add(below(path, name))
        return found

    async def _check_tables(self) -> None:
        with self.store.snapshot() as reader:
            while Names(reader).orphans(1):
                await asyncio.sleep(0)
                with self.store.snapshot() as later:
                    reader = later
            names = Names(reader)
            dentries = dict(reader.scan(Table.DENTRIES, b"", b"\xff" * 300, 10_000))
            parents = dict(reader.scan(Table.PARENTS, b"", b"\xff" * 300, 10_000))
            held, meta = names.held(), names.meta()
        inos = {key: ino_key(decode_dentry(value).inode.ino) for key, value in dentries.items()}
        assert {ino: key for key, ino in inos.items()} == parents
        assert meta is not None
        assert meta.names == len(dentries) - 1
        assert all(inos[dentry_key(p, key)] == ino_key(ino) for p, key, ino in held)
        assert len(held) == len(self.model.held()) - 1


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_namespace_is_what_the_mount_table_means(steps: list[Step]) -> None:
    async def work() -> None:
        bench = Bench()
        try:
            async with asyncio.timeout(DEADLINE_S):
                seen = await bench.check({})
                for step in steps:
                    await bench.step(step)
                    seen = await bench.check(seen)
        finally:
            await bench.master.close()

    asyncio.run(work())


def test_the_mark_of_everything_is_no_name() -> None:
    assert b"/" in EVERYTHING[1]
