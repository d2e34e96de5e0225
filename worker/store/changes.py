"""The changes that the worker makes to the index; see `worker.store.index.Change`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from worker.store.index import IndexWriter
from worker.store.records import HELD_READ, FileRecord
from worker.store.view_records import NameRecord, ViewRecord


class PutFile(msgspec.Struct, frozen=True):
    """Stores the record of a file, and its new or cleared (None) pages."""

    key: bytes
    record: FileRecord
    pages: Mapping[int, int | None]

    def apply(self, writer: IndexWriter) -> None:
        writer.put(self.key, self.record)
        if self.pages:
            writer.put_pages(self.key, self.record.size, self.pages)


class DropFile(msgspec.Struct, frozen=True):
    key: bytes

    def apply(self, writer: IndexWriter) -> None:
        writer.delete(self.key)


class TouchFile(msgspec.Struct, frozen=True):
    """Updates the last use, the allocated bytes (-1: unchanged) and the time of the last fill (0:
    unchanged) of a file. Does nothing if the file has no record."""

    key: bytes
    last_use_s: int = 0
    allocated_bytes: int = -1
    filled_s: int = 0

    def apply(self, writer: IndexWriter) -> None:
        record = writer.get(self.key)
        if record is None:
            return
        allocated = record.allocated_bytes if self.allocated_bytes < 0 else self.allocated_bytes
        last_use_s = max(record.last_use_s, self.last_use_s)
        writer.put(
            self.key,
            msgspec.structs.replace(
                record,
                last_use_s=last_use_s,
                allocated_bytes=allocated,
                filled_s=self.filled_s or record.filled_s,
            ),
        )


class HoldFile(msgspec.Struct, frozen=True):
    """Protects a file from eviction until `until_s` (wall clock); 0 ends that. Does nothing if the
    file has no record."""

    key: bytes
    until_s: int
    though_read: bool = False

    def apply(self, writer: IndexWriter) -> None:
        record = writer.get(self.key)
        if record is None:
            return
        flags = record.flags & ~HELD_READ | (HELD_READ if self.though_read else 0)
        if (record.held_until_s, record.flags) != (self.until_s, flags):
            changed = msgspec.structs.replace(record, flags=flags, held_until_s=self.until_s)
            writer.put(self.key, changed)


class PutView(msgspec.Struct, frozen=True):
    """Stores the record of a view; None deletes it."""

    view: int
    record: ViewRecord | None

    def apply(self, writer: IndexWriter) -> None:
        if self.record is None:
            writer.delete_view(self.view)
        else:
            writer.put_view(self.view, self.record)


class PutNames(msgspec.Struct, frozen=True):
    """Stores names of a view, by their keys after `head`."""

    head: bytes
    names: Mapping[bytes, NameRecord]

    def apply(self, writer: IndexWriter) -> None:
        for key, record in self.names.items():
            writer.put_name(self.head + key, record)


class DropNames(msgspec.Struct, frozen=True):
    """Deletes names of views, by their whole keys."""

    keys: Collection[bytes]

    def apply(self, writer: IndexWriter) -> None:
        for key in self.keys:
            writer.delete_name(key)
