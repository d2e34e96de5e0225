"""Walks in the order of whole paths: from any file on, fresh and known, one behind the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cachefs.core.errors import CacheFSError
from cachefs.core.model import Kind, UfsSpec
from master.jobs import walk
from master.jobs.walk import FreshPages, OrderedWalk, PageSource, StoredPages
from master.namespace import Master
from tests.services.memory import MemoryConnector

DEADLINE_S = 60.0
SEEDS = range(300, 306)


def tree(dice: random.Random) -> dict[bytes, bytes]:
    """Names that sort around '/', files beside directories whose names they begin with."""
    names = [b"a", b"a-", b"a.txt", b"a0", b"ab", b"b", b"b b", b"\xc3\xa9", b"z"]
    files: dict[bytes, bytes] = {}
    for _ in range(dice.randint(1, 80)):
        parts = [dice.choice(names) for _ in range(dice.randint(1, 4))]
        path = b"/".join(parts)
        below = any(one.startswith(path + b"/") for one in files)
        above = any(path.startswith(one + b"/") for one in files)
        if not below and not above:
            files[path] = b"x"
    return files


async def walked(master: Master, source: PageSource, base: bytes, after: bytes) -> list[bytes]:
    found = await master.resolve(base)
    assert found.inode is not None
    one = OrderedWalk(master.store, source, unexpected)
    one.begin(found.inode.ino, base, after)
    paths = []
    while (batch := await one.next()) is not None:
        assert batch.files, "nothing holds it up"
        head = batch.path + b"/" if batch.path else b""
        paths += [head + key for key, inode in batch.files if inode.kind is Kind.FILE]
    return paths


def unexpected(path: bytes, err: CacheFSError) -> None:
    raise AssertionError(f"{path!r}: {err}")


def with_master(
    directory: Path, files: dict[bytes, bytes], work: Callable[[Master], object]
) -> None:
    async def run() -> None:
        source = MemoryConnector()
        for path, data in files.items():
            source.put(path, data)
        master = Master.open(directory / "m", UfsSpec("s3://b"), source, 60.0)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await work(master)  # type: ignore[misc]
        finally:
            await master.close()

    asyncio.run(run())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_walk_goes_on_behind_any_path(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    files = tree(dice)
    monkeypatch.setattr(walk, "LIST_LIMIT", dice.randint(1, 5))
    order = sorted(files)

    async def work(master: Master) -> None:
        fresh = FreshPages(master._directories.list_dir, master._directories.list_ahead)
        assert await walked(master, fresh, b"", b"") == order
        known = StoredPages(master.store, lambda: None)
        places = [*order, b"a/zz/gone", b"b\x00", b"a-/b/nothing/here"]
        for after in dice.sample(places, min(len(places), 12)):
            rest = [path for path in order if path > after]
            assert await walked(master, fresh, b"", after) == rest, after
            assert await walked(master, known, b"", after) == rest, after

    with_master(tmp_path, files, work)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_walk_below_a_directory(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    files = tree(dice)
    deep = [path for path in files if b"/" in path]
    if not deep:
        files[b"a-/x"] = b"x"
        deep = [b"a-/x"]
    base = dice.choice(deep).rpartition(b"/")[0]
    inside = sorted(path for path in files if path.startswith(base + b"/"))

    async def work(master: Master) -> None:
        fresh = FreshPages(master._directories.list_dir, master._directories.list_ahead)
        assert await walked(master, fresh, base, b"") == inside
        after = dice.choice(inside)
        rest = [path for path in inside if path > after]
        assert await walked(master, fresh, base, after) == rest

    with_master(tmp_path, files, work)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_known_walk_stays_behind_another(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes what the other has passed, all of it, and waits for the rest."""
    dice = random.Random(seed)
    files = tree(dice)
    monkeypatch.setattr(walk, "LIST_LIMIT", dice.randint(1, 5))
    order = sorted(files)

    async def work(master: Master) -> None:
        fresh = FreshPages(master._directories.list_dir, master._directories.list_ahead)
        await walked(master, fresh, b"", b"")
        come: list[bytes | None] = [b""]
        behind = OrderedWalk(master.store, StoredPages(master.store, lambda: come[0]), unexpected)
        behind.begin(1, b"", b"")
        got: list[bytes] = []
        stops: list[bytes | None] = [*sorted(dice.sample(order, min(len(order), 6))), None]
        for stop in stops:
            come[0] = stop
            while (batch := await behind.next()) is not None and batch.files:
                head = batch.path + b"/" if batch.path else b""
                got += [head + key for key, inode in batch.files if inode.kind is Kind.FILE]
            if stop is not None:
                assert got == [path for path in order if path <= stop]
        assert got == order

    with_master(tmp_path, files, work)
