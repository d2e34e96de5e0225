"""The narrow interface of a metadata engine: ordered tables, snapshots, grouped commits.

Keys and values are bytes; each table is ordered by key. Reads happen in a snapshot that must live
no longer than one page of a listing. Writes are functions that run in the engine's writer thread,
many in one transaction. The engine may run a function again when the transaction that it shared
failed, so a function changes only its `Writer`. `master.state.records` defines the bytes.
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
    UNCHECKED = 13
    BACKGROUND = 14


class Reader(Protocol):
    """A consistent view of all tables."""

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def scan(
        self, table: Table, after: bytes, below: bytes, limit: int, limit_bytes: int = 1 << 62
    ) -> list[tuple[bytes, bytes]]:
        """Returns the keys in (after, below) and their values, in order. Stops at `limit` items, or
        once keys and values together reach `limit_bytes`."""


class Writer(Reader, Protocol):
    """A view that sees its own writes. Either all of them become durable or none."""

    def put(self, table: Table, items: Iterable[tuple[bytes, bytes]]) -> None: ...

    def delete(self, table: Table, keys: Iterable[bytes]) -> None:
        """Deletes rows; ignores keys that do not exist."""


class Store(Protocol):
    """An open engine. Thread-safe. `failure`: the error of the last commit that had to write, "" if
    it succeeded. `scratch`: a private directory for temporary files; None: the system's. `waits_s`:
    for how long the present commit has run; 0: none runs. `waiting`: how many writes are queued
    behind it."""

    failure: str
    scratch: str | None

    @property
    def waits_s(self) -> float: ...
    @property
    def waiting(self) -> int: ...

    def snapshot(self) -> AbstractContextManager[Reader]: ...

    def write(self, function: Callable[[Writer], T]) -> Future[T]:
        """Queues a write; the future is done when the write is durable. Blocks while the queue is
        full, so an event loop awaits `wrap_future(store.write(…))` for single records only; bulk
        writers use threads. Raises InUse once the store is closed. The future fails with NoSpace if
        the disk is full, else with the function's error."""

    def close(self) -> None:
        """Commits the queued writes and releases the files. Idempotent."""
