"""A master over origins in memory, and syncs on it from begin to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cachefs.core.messages import SyncReply
from cachefs.core.model import ROOT_INO, Fingerprint, Kind, UfsSpec
from cachefs.core.syncs import Change, ChangeKind, SyncStatus
from connectors.base import Connector
from master.namespace import Master
from master.state.records import name_of
from master.store.base import Store, Table
from master.store.lmdb_store import LmdbStore
from master.store.snapshot import Names
from tests.services.memory_store import MemoryStore

DEADLINE_S = 60.0
INTERVAL_S = 3600.0
SOURCE = UfsSpec("s3://bucket/prefix")
ABOVE_ALL = b"\xff" * 300


class Clock:
    """Wall time that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Ended(NamedTuple):
    """A sync that ended: how, and what changed as (kind, path), a directory's with a '/'."""

    shown: SyncStatus
    changes: list[tuple[str, bytes]]


class Known(NamedTuple):
    """What a store has at a path."""

    ino: int
    fingerprint: Fingerprint
    listed: bool


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until the condition holds; the test's deadline bounds it."""
    while not condition():
        await asyncio.sleep(0)


@asynccontextmanager
async def master_over(
    store: Store, origin: Connector, clock: Callable[[], float] | None = None
) -> AsyncIterator[Master]:
    master = Master(store, INTERVAL_S, clock or Clock())
    master.mount_root(SOURCE, origin)
    try:
        yield master
    finally:
        await master.close()


def store_of(kind: str, directory: Path) -> Store:
    return LmdbStore(directory / "store") if kind == "lmdb" else MemoryStore()


async def synced(
    master: Master, path: bytes = b"", *, recursive: bool = True, dry_run: bool = False
) -> Ended:
    """Runs a sync to its end."""
    started = await master.start_sync(path, recursive=recursive, dry_run=dry_run)
    return await ended(master, started.sync.sync)


async def ended(master: Master, sync: int) -> Ended:
    """Waits for the end of a sync; all changes that are kept."""
    while (await master.sync(sync, 0, stop=False)).sync.state == "running":
        await asyncio.sleep(0)
    changes: list[Change] = []
    while True:
        reply: SyncReply = await master.sync(sync, len(changes), stop=False)
        changes += reply.changes
        if not reply.changes:
            assert len(changes) == reply.sync.kept
            return Ended(reply.sync, sorted(map(shown, changes)))


def shown(change: Change) -> tuple[str, bytes]:
    return change.kind.value, change.path + b"/" * change.is_directory


def added(*paths: bytes) -> list[tuple[str, bytes]]:
    return [(ChangeKind.ADDED.value, path) for path in paths]


def replaced(*paths: bytes) -> list[tuple[str, bytes]]:
    return [(ChangeKind.REPLACED.value, path) for path in paths]


def gone(*paths: bytes) -> list[tuple[str, bytes]]:
    return [(ChangeKind.GONE.value, path) for path in paths]


def content(store: Store) -> dict[Table, list[tuple[bytes, bytes]]]:
    """Everything that is in a store."""
    with store.snapshot() as reader:
        return {table: reader.scan(table, b"", ABOVE_ALL, 1 << 20) for table in Table}


def known(store: Store) -> dict[bytes, Known]:
    """All names of a store by path, without the root."""
    found: dict[bytes, Known] = {}
    with store.snapshot() as reader:
        names = Names(reader)
        stack = [(ROOT_INO, b"")]
        while stack:
            ino, path = stack.pop()
            for key, stored in names.children(ino, b"", None, 1 << 20):
                below = path + b"/" + name_of(key) if path else name_of(key)
                inode = stored.inode
                listed = names.directory(inode.ino) is not None
                found[below] = Known(inode.ino, inode.fingerprint, listed)
                if inode.kind is Kind.DIRECTORY:
                    stack.append((inode.ino, below))
    return found


def was_listed(store: Store) -> bool:
    """Were all names in the root ever listed?"""
    with store.snapshot() as reader:
        return Names(reader).directory(ROOT_INO) is not None


def orphans(store: Store) -> list[int]:
    with store.snapshot() as reader:
        return Names(reader).orphans(1000)
