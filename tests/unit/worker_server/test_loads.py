"""Loads: what they say is true, listing and loading overlap, nothing grows without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied, CacheFSError, NoSpace
from cachefs.core.model import Inode, Kind, NamespaceId
from worker.loads import LoadTable

LIMIT_S = 10.0


class FakeNamespace:
    """Files by path; a file's ino is its place + 2, a directory's is above a million."""

    namespace = NamespaceId(b"n" * 16)

    def __init__(self, files: dict[bytes, int]) -> None:
        self.files = {
            path: Inode(i, Kind.FILE, size) for i, (path, size) in enumerate(files.items(), start=2)
        }
        self.listed = 0
        self.directories: list[bytes] = []

    async def resolve(self, path: bytes) -> m.Found:
        if path in self.files:
            return m.Found(self.files[path], 1.0)
        if not any(name.startswith(path and path + b"/") for name in self.files):
            return m.Found(None, 1.0)
        self.directories.append(path and path + b"/")
        return m.Found(Inode(1_000_000 + len(self.directories), Kind.DIRECTORY), 1.0)

    async def walk(self, ino: int) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        below = self.directories[ino - 1_000_001] if ino > 1_000_000 else b""
        for path, inode in self.files.items():
            if ino == inode.ino or (ino > 1_000_000 and path.startswith(below)):
                self.listed += 1
                yield [(path, inode)]


class FakeFetcher:
    def __init__(self, failing: dict[int, CacheFSError]) -> None:
        self.failing = failing
        self.fetched: list[int] = []
        self.gate: asyncio.Event | None = None

    async def fetch(self, namespace: bytes, ino: int, *, on_bytes: Callable[[int], None]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if ino in self.failing:
            raise self.failing[ino]
        self.fetched.append(ino)
        on_bytes(10)


async def finish(table: LoadTable, id: int) -> m.LoadProgress:
    await asyncio.wait_for(table._loads[id].finished.wait(), LIMIT_S)
    return table.progress(id)


def load(
    files: dict[bytes, int], paths: list[bytes], failing: dict[int, CacheFSError] | None = None
) -> tuple[m.LoadProgress, FakeFetcher]:
    async def run() -> tuple[m.LoadProgress, FakeFetcher]:
        fetcher = FakeFetcher(failing or {})
        table = LoadTable(fetcher)
        namespace: Any = FakeNamespace(files)
        done = await finish(table, table.start(namespace, paths))
        await table.close()
        return done, fetcher

    return asyncio.run(run())


FILES = {b"a/1": 10, b"a/2": 20, b"b/1": 30}


def test_everything_below_the_paths() -> None:
    done, fetcher = load(FILES, [b"a", b"b/1"])
    assert (done.state, done.files_done, done.bytes_done, done.bytes_fetched) == (
        "succeeded", 3, 60, 30,
    )  # fmt: skip
    assert sorted(fetcher.fetched) == [2, 3, 4]


def test_a_glob_selects() -> None:
    done, fetcher = load(FILES, [b"*/1"])
    assert (done.state, done.files_found, fetcher.fetched) == ("succeeded", 2, [2, 4])


def test_one_failed_file_fails_the_load_and_is_named() -> None:
    done, _ = load(FILES, [b""], {3: AccessDenied("403 from the store", path="a/2")})
    assert (done.state, done.files_done, done.files_failed) == ("failed", 2, 1)
    assert done.failures == [(b"a/2", "a/2: 403 from the store")]


def test_a_path_that_matches_nothing_fails() -> None:
    for path in (b"nothing", b"a/*.jpg"):
        done, _ = load(FILES, [path])
        assert done.state == "failed"
        assert done.failures[0][0] == path


def test_a_load_that_cannot_fit_stops_and_says_so() -> None:
    files = {b"%d" % i: 1 for i in range(10_000)}
    done, fetcher = load(files, [b""], {40: NoSpace("1 GiB wanted, 10 MiB free")})
    assert done.state == "failed"
    assert "10 MiB free" in done.message
    assert not done.listing_done
    assert len(fetcher.fetched) < 5_000


def test_listing_waits_for_loading_and_loading_starts_before_it_ends() -> None:
    files = {b"%d" % i: 1 for i in range(10_000)}

    async def run() -> None:
        fetcher = FakeFetcher({})
        fetcher.gate = asyncio.Event()
        table = LoadTable(fetcher)
        namespace: Any = FakeNamespace(files)
        id = table.start(namespace, [b""])
        for _ in range(10_000):
            await asyncio.sleep(0)
        assert table.progress(id).state == "running"
        assert namespace.listed < 3_000  # the queue is bounded
        fetcher.gate.set()
        assert (await finish(table, id)).files_done == 10_000
        await table.close()

    asyncio.run(run())


def test_old_loads_are_forgotten() -> None:
    async def run() -> None:
        table = LoadTable(FakeFetcher({}))
        namespace: Any = FakeNamespace({b"a": 1})
        for _ in range(200):
            await finish(table, table.start(namespace, [b"a"]))
        assert len(table.status()) <= 65
        await table.close()

    asyncio.run(run())
