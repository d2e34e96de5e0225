"""The narrow interface of a metadata engine: ordered tables, snapshots, grouped commits.

Keys and values are bytes; each table is ordered by key. Reads happen in a snapshot that must live
no longer than one page of a listing. Writes are functions that run in the engine's writer thread,
many in one transaction: a function may be run again when the transaction that it shared failed, so
it has no effect but on its `Writer`. What the bytes mean is `master.state.records`'s business.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

MAX_QUEUED_WRITES: Final = 1024
MAX_KEY_BYTES: Final = 511


class Table(enum.IntEnum):
    """The tables of a namespace; `master.state.records` defines keys and values."""

    META = 0
    DENTRIES = 1
    PARENTS = 2
    DIRECTORIES = 3
    EVENTS = 4
    MOUNTS = 5
    ORPHANS = 6
    MEMBERS = 7
    HELD = 8
    POLICIES = 9
    JOBS = 10
    JOB_PATHS = 11
    JOB_FAILURES = 12


class Reader(Protocol):
    """A consistent view of all tables."""

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def scan(
        self, table: Table, after: bytes, below: bytes, limit: int, limit_bytes: int = 1 << 62
    ) -> list[tuple[bytes, bytes]]:
        """Keys in (after, below) with their values, in order: at most `limit` of them, and no more
        once keys and values together reach `limit_bytes`."""


class Writer(Reader, Protocol):
    """A view that sees its own writes. All of them become durable together, or none."""

    def put(self, table: Table, items: Iterable[tuple[bytes, bytes]]) -> None: ...

    def delete(self, table: Table, keys: Iterable[bytes]) -> None:
        """Keys that are not there are passed over."""


class Store(Protocol):
    """An open engine. Thread-safe. `failure`: why the last commit failed; "" if it did not."""

    failure: str

    def snapshot(self) -> AbstractContextManager[Reader]: ...

    def write(self, function: Callable[[Writer], T]) -> Future[T]:
        """Queues a write; the future is done when it is durable. Blocks while the queue is full, so
        an event loop awaits `wrap_future(store.write(…))` for single records only, and bulk writers
        are threads. Raises InUse once the store is closed. The future fails with NoSpace where the
        disk is full, else with what the function raised."""

    def close(self) -> None:
        """Commits what is queued and releases the files. Idempotent."""
