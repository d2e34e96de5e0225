"""A metadata store in memory: the second implementation of the contract, for tests.

Snapshots are immutable dictionaries; a transaction works on copies and publishes them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from cachefs.core.errors import Unavailable
from master.store.base import MAX_KEY_BYTES, Reader, Table, Writer
from master.store.group import GroupCommit

T = TypeVar("T")
Tables = dict[Table, dict[bytes, bytes]]


class MemoryWriter:
    """`Writer` over dictionaries; as a reader it is handed to snapshots and never written."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self.tables[table].get(key)

    def scan(
        self, table: Table, after: bytes, below: bytes, limit: int, limit_bytes: int = 1 << 62
    ) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for item in sorted(kv for kv in self.tables[table].items() if after < kv[0] < below):
            if len(found) >= limit or limit_bytes <= 0:
                break
            found.append(item)
            limit_bytes -= len(item[0]) + len(item[1])
        return found

    def put(self, table: Table, items: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in items:
            if not 0 < len(key) <= MAX_KEY_BYTES:
                raise Unavailable(f"a key of {len(key)} bytes")
            self.tables[table][key] = value

    def delete(self, table: Table, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.tables[table].pop(key, None)


class MemoryStore:
    """A store that ends with its process."""

    def __init__(self) -> None:
        self.failure = ""
        self.scratch: str | None = None
        self._published: Tables = {table: {} for table in Table}
        self._writer = GroupCommit(self._begin, "memory-store-writer")

    @contextmanager
    def snapshot(self) -> Iterator[Reader]:
        yield MemoryWriter(self._published)

    def write(self, function: Callable[[Writer], T]) -> Future[T]:
        return self._writer.submit(function)

    @property
    def waits_s(self) -> float:
        return self._writer.waits_s

    @property
    def waiting(self) -> int:
        return self._writer.waiting

    def close(self) -> None:
        self._writer.close()

    @contextmanager
    def _begin(self) -> Iterator[Writer]:
        tables = {table: dict(items) for table, items in self._published.items()}
        yield MemoryWriter(tables)
        self._published = tables
