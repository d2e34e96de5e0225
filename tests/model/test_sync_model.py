"""Syncs against a naive comparison: random names come, change and go at two origins, one mounted in
the other, some of them are looked at in between, and then some path is synced, dry and real. What
is reported is what a comparison of two dictionaries says; a dry run writes nothing; after a real
one of everything the namespace is what the origins are, and another finds nothing.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest

from cachefs.core.errors import CacheFSError
from cachefs.core.model import Fingerprint, Kind, UfsSpec
from master.manual_sync import findings, preview
from master.namespace import Master
from master.state.records import EVERYTHING, decode_event
from master.store import transaction
from master.store.base import Table
from tests.services.memory import MemoryConnector
from tests.unit.master.sync_rig import (
    Clock,
    Known,
    content,
    known,
    master_over,
    orphans,
    run,
    store_of,
    synced,
    until,
    was_listed,
)

SEGMENTS = [b"a", b"a!", b"a.b", b"b", b"m", b"n"]
NESTED = b"m/n"  # where the second source is
HELD = {b"", b"m", NESTED}
DIRECTORY = Fingerprint(Kind.DIRECTORY)
STEPS = 12

Changes = Counter[tuple[str, bytes, bool]]


def join(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


def above(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


class Naive:
    """What a sync must say, from what is known and what the origins have."""

    def __init__(
        self, origins: list[MemoryConnector], known_now: dict[bytes, Known], root_listed: bool
    ) -> None:
        self.known = {path: one.fingerprint for path, one in known_now.items()}
        self.listed = {path for path, one in known_now.items() if one.listed}
        self.listed |= {b""} if root_listed else set()
        self.seen = tree_of(origins)
        self.changes: Changes = Counter()
        self.failed = False

    def sync(self, path: bytes, *, recursive: bool) -> None:
        at, new = b"", False
        segments = path.split(b"/") if path else []
        for depth, name in enumerate(segments, 1):
            at = join(at, name)
            is_last = depth == len(segments)
            if at in HELD or (self.known.get(at) == DIRECTORY and not is_last):
                continue
            there, was = self.seen.get(at), self.known.get(at)
            if there is None and was is None:
                self.failed = True
                return
            new = self.name(at, new)
            if there != DIRECTORY:
                self.failed = there is not None and not is_last
                self.failed |= there is None and not is_last
                return
        self.directory(at, new, recursive=recursive)

    def directory(self, path: bytes, new: bool, *, recursive: bool) -> None:
        below = {p for p in {*self.seen, *self.known} if above(p) == path}
        for one in sorted(below - HELD):
            came = self.name(one, new)
            if recursive and self.seen.get(one) == DIRECTORY:
                self.directory(one, came, recursive=True)
        if recursive:
            for one in sorted(HELD - {b""}):
                if above(one) == path:
                    self.directory(one, False, recursive=True)

    def name(self, path: bytes, new: bool) -> bool:
        """Compares one; did it come now?"""
        there, was = self.seen.get(path), self.known.get(path)
        if new and there is not None:
            self.changes["added", path, there == DIRECTORY] += 1
            return True
        if there == was:
            return False
        if was == DIRECTORY:
            for below in self.known:
                if below.startswith(path + b"/"):
                    self.changes["gone", below, self.known[below] == DIRECTORY] += 1
        if there is None:
            self.changes["gone", path, was == DIRECTORY] += 1
        elif was is not None:
            self.changes["replaced", path, there == DIRECTORY] += 1
        elif above(path) in self.listed:
            self.changes["added", path, there == DIRECTORY] += 1
        else:
            return False
        return there is not None


def tree_of(origins: list[MemoryConnector]) -> dict[bytes, Fingerprint]:
    """What the namespace should be, without held directories."""
    found: dict[bytes, Fingerprint] = {}
    for origin, root in zip(origins, (b"", NESTED), strict=True):
        stack = [b""]
        while stack:
            directory = stack.pop()
            for page in origin.list_dir(directory):
                for entry in page.entries:
                    path = join(directory, entry.name)
                    is_directory = entry.fingerprint.kind is Kind.DIRECTORY
                    if join(root, path) not in HELD:
                        found[join(root, path)] = entry.fingerprint
                    elif not is_directory or join(root, path) == NESTED:
                        continue
                    if is_directory:
                        stack.append(path)
    return found


class World:
    def __init__(self, seed: int, origins: list[MemoryConnector], master: Master) -> None:
        self.random = random.Random(seed)
        self.origins = origins
        self.master = master

    def path(self) -> bytes:
        depth = self.random.choice([1, 2, 2, 3, 3, 4])
        return b"/".join(self.random.choices(SEGMENTS, k=depth))

    def change(self) -> None:
        origin, path = self.random.choice(self.origins), self.path()
        if self.random.random() < 0.35:
            if files := self._files(origin):
                origin.delete(self.random.choice(files))
            return
        for part in self._in_the_way(origin, path):
            origin.delete(part)
        origin.put(path, self.random.randbytes(3))

    def _files(self, origin: MemoryConnector) -> list[bytes]:
        return origin.files()

    def _in_the_way(self, origin: MemoryConnector, path: bytes) -> list[bytes]:
        return [
            file
            for file in self._files(origin)
            if path.startswith(file + b"/") or file.startswith(path + b"/")
        ]

    async def look(self) -> None:
        """Somebody reads."""
        with contextlib.suppress(CacheFSError):  # it may go while it is looked at
            found = (await self.master.resolve(self.path())).inode
            if found is not None and found.kind is Kind.DIRECTORY:
                await self.master.list_dir(found.ino, b"", 1000)


def counted(changes: list[tuple[str, bytes]]) -> Changes:
    return Counter((kind, path.rstrip(b"/"), path.endswith(b"/")) for kind, path in changes)


def told(master: Master, after: int) -> set[tuple[int, bytes]]:
    """Names in the events behind a position."""
    with master.store.snapshot() as reader:
        events = reader.scan(Table.EVENTS, b"", b"\xff" * 9, 1 << 20)
    return {
        entry
        for key, value in events
        if int.from_bytes(key, "big") > after
        for entry in decode_event(value)
    } - {EVERYTHING}


async def check_sync(world: World, path: bytes, *, recursive: bool) -> None:
    master, store = world.master, world.master.store
    await until(lambda: not master._sync._tasks)  # what a look began in the background
    before = known(store)
    naive = Naive(world.origins, before, was_listed(store))
    naive.sync(path, recursive=recursive)
    whole, position = content(store), master.position
    dry = await synced(master, path, recursive=recursive, dry_run=True)
    assert content(store) == whole, "a dry run writes nothing"
    assert counted(dry.changes) == naive.changes, "what a dry run says"
    assert (dry.shown.state == "failed") == naive.failed, dry.shown
    real = await synced(master, path, recursive=recursive)
    assert counted(real.changes) == naive.changes, "what a sync says"
    assert (real.shown.state == "failed") == naive.failed, real.shown
    assert (real.shown.added, real.shown.replaced, real.shown.gone) == tuple(
        sum(count for (kind, _, _), count in naive.changes.items() if kind == wanted)
        for wanted in ("added", "replaced", "gone")
    )
    after = known(store)
    for one, was in before.items():
        stays = (now := after.get(one)) is not None and now.fingerprint == was.fingerprint
        assert not stays or after[one].ino == was.ino, (one, "stays what it was")
        changed = ("replaced", one, False) in naive.changes
        assert not changed or after[one].ino != was.ino, (one, "is another file")
    _check_told(master, position, before, naive.changes)


def _check_told(
    master: Master,
    position: int,
    before: dict[bytes, Known],
    changes: Changes,
) -> None:
    """What a client may have kept was said to be wrong, or what it is in."""
    names = told(master, position)
    for _, path, _ in changes:
        if path not in before:
            continue
        parts = path.split(b"/")
        inos = [1, *(before[b"/".join(parts[:n])].ino for n in range(1, len(parts)))]
        assert any((ino, name) in names for ino, name in zip(inos, parts, strict=True)), path


async def scenario(seed: int, directory: Path, kind: str) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    origins = [
        MemoryConnector(ordered=rng.random() < 0.7, page_entries=rng.choice([1, 2, 3, 1000]))
        for _ in range(2)
    ]
    clock = Clock()
    async with master_over(store_of(kind, directory), origins[0], clock) as master:
        await master.add_ufs(NESTED, UfsSpec("s3://other"), origins[1], 3600.0)
        world = World(seed, origins, master)
        for _ in range(STEPS):
            for _ in range(rng.choice([1, 3, 8])):
                world.change()
                clock.now += 1
            for _ in range(rng.choice([0, 1, 3])):
                await world.look()
            clock.now += 1
            path = rng.choice([b"", world.path(), world.path(), b"m", NESTED])
            await check_sync(world, path, recursive=rng.random() < 0.6)
        await check_sync(world, b"", recursive=True)
        names = {p: one.fingerprint for p, one in known(master.store).items() if p not in HELD}
        assert names == tree_of(origins), "the namespace is what the origins are"
        last = await synced(master)
        assert (last.shown.state, last.changes) == ("done", []), "nothing is left to be found"
        await until(lambda: not orphans(master.store))
        assert master.status()["names"] == len(known(master.store))


@pytest.mark.parametrize("seed", range(12))
def test_a_sync_says_what_a_naive_comparison_says(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = random.Random(seed).choice([1, 2, 4000])
    monkeypatch.setattr(transaction, "MAX_STORED_PER_MERGE", few)
    monkeypatch.setattr(preview, "STORED_AT_ONCE", few)
    monkeypatch.setattr(findings, "PAGE", few)
    run(scenario(seed, tmp_path, "lmdb" if seed % 4 == 0 else "memory"))
