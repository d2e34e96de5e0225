"""The lookup of a content in the tier: its cached pages, verified first if they are distrusted.

After a crash of the machine or a failed sync, records of unsynced epochs are distrusted. The lookup
then compares every page on the disk with its checksum, clears the bad pages and records the rest in
the current epoch. Blocking.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import msgspec

from cachefs.core.model import Origin
from cachefs.core.pages import page_count
from worker.store import filesystem, on_disk
from worker.store.changes import DropFile, PutFile
from worker.store.directory import TierDirectory
from worker.store.holds import Hold
from worker.store.publishing import publish_trusted
from worker.store.records import HELD_READ, FileRecord
from worker.store.writer import Writer


@dataclass(slots=True)
class LookupResult:
    """The result of a lookup. `fd`: the cache file opened for reading and writing; -1: nothing is
    cached. `grown_bytes`: allocated minus recorded bytes of the file."""

    fd: int = -1
    bits: int = 0
    allocated_bytes: int = 0
    grown_bytes: int = 0
    published: bool = False
    lost: bool = False  # the record exists, but its file is missing or has another size
    verified: bool = False
    bad_pages: int = 0
    hold: Hold | None = None

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def lookup_content(
    tier: TierDirectory, writer: Writer, origin: Origin, key: bytes, epoch: int
) -> LookupResult:
    """Looks a content up, and publishes it if it is complete, unless its record has become
    distrusted. The caller closes `fd`. Raises OSError."""
    name = key.hex()
    record = tier.index.get(key)
    if record is None:
        return LookupResult()
    fd = tier.open_file(name)
    if fd is None or record.size != origin.size or os.fstat(fd).st_size != origin.size:
        return _lost(tier, writer, name, record, fd)
    looked = LookupResult(fd)
    try:
        _fill_in(looked, tier, writer, key, record, epoch)
    except BaseException:
        os.close(fd)
        raise
    return looked


def _fill_in(
    looked: LookupResult,
    tier: TierDirectory,
    writer: Writer,
    key: bytes,
    record: FileRecord,
    epoch: int,
) -> None:
    looked.bits = tier.index.bits(key, record.size)
    if record.held_until_s:
        looked.hold = Hold(record.held_until_s, bool(record.flags & HELD_READ))
    looked.allocated_bytes = filesystem.allocated_bytes(looked.fd)
    looked.grown_bytes = looked.allocated_bytes - record.allocated_bytes
    complete = looked.bits.bit_count() == page_count(record.size)
    used_epoch = record.epoch
    if not tier.header.trusts(used_epoch):
        bad = _verify(looked, tier, key, record)
        complete = complete and not bad
        used_epoch = epoch
        _put(looked, writer, key, record, bad, complete, epoch)
    elif complete != record.complete:
        _put(looked, writer, key, record, {}, complete, record.epoch)
    elif looked.grown_bytes:
        try:
            _put(looked, writer, key, record, {}, complete, record.epoch)
        except OSError:  # the index takes nothing: the file is read, with the recorded allocation
            looked.allocated_bytes, looked.grown_bytes = record.allocated_bytes, 0
    if complete:
        looked.published = publish_trusted(tier, key.hex(), used_epoch)


def _verify(
    looked: LookupResult, tier: TierDirectory, key: bytes, record: FileRecord
) -> dict[int, int | None]:
    """Returns the bad pages, which it clears in `looked`."""
    checksums = tier.index.sums(key, record.size, 0, page_count(record.size))
    bad = on_disk.bad_pages(looked.fd, record.size, checksums)
    for page in bad:
        looked.bits &= ~(1 << page)
    looked.verified, looked.bad_pages = True, len(bad)
    return dict.fromkeys(bad)


def _put(
    looked: LookupResult,
    writer: Writer,
    key: bytes,
    record: FileRecord,
    bad: dict[int, int | None],
    complete: bool,
    epoch: int,
) -> None:
    changed = msgspec.structs.replace(
        record, allocated_bytes=looked.allocated_bytes, complete=complete, epoch=epoch
    )
    writer.write([PutFile(key, changed, bad)])


def _lost(
    tier: TierDirectory, writer: Writer, name: str, record: FileRecord, fd: int | None
) -> LookupResult:
    """Drops a record whose file is missing or has another size: nothing is cached."""
    if fd is not None:
        os.close(fd)
    tier.unpublish(name)
    writer.write([DropFile(bytes.fromhex(name))])
    tier.unlink(name)
    return LookupResult(grown_bytes=-record.allocated_bytes, lost=True)
