"""The tier's index in LMDB: the cache files, their cached pages, and the checksums of these.

Any thread may read; writes are `Change`s, which only the writer thread (`worker.store.writer`)
applies. Commits force the data pages but not the meta page (`metasync` off): a crash of the machine
can undo the last commits, never damage the index. An undone commit costs only a refetch, as `pub/`
is rebuilt after every boot and pages since the last sync are verified. It halves the disk waits.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import lmdb
import msgspec

from cachefs.core.lock_table import lock_table_in_memory
from cachefs.core.model import PAGE_BYTES
from cachefs.core.pages import page_count, range_bytes
from worker.store.records import (
    BLOCK_PAGES,
    FORMAT,
    META_KEY,
    BlockRecord,
    FileRecord,
    IndexMeta,
    block_key,
    block_pages,
    decode_file,
    decode_meta,
    encode_file,
    encode_meta,
)
from worker.store.resident_pages import ResidentPages
from worker.store.view_records import (
    NameRecord,
    ViewRecord,
    decode_name,
    decode_view,
    directory_key,
    encode_name,
    encode_view,
    view_key,
    view_of_key,
)

MAP_BYTES: Final = 1 << 38  # address space, not disk
MIN_MAP_BYTES: Final = 1 << 30
READERS: Final = 128


class IndexDamaged(Exception):
    """The index cannot be read, or belongs to another tier or format: the cache starts empty."""


class WritesLost(OSError):
    """A sync failed: the kernel could not write accepted bytes to the disk."""


class IndexLost(WritesLost):
    """The lost bytes include the index, whose content may be wrong."""


class IndexWriter:
    """A write transaction: records, and the totals that change with them."""

    def __init__(self, txn: Any, index: Index) -> None:
        self._txn = txn
        self._files = index.files
        self._pages = index.pages
        self._views = index.view_table
        self._names = index.name_table
        self._meta_db = index.meta
        meta = decode_meta(txn.get(META_KEY, db=self._meta_db) or b"")
        self._tier = meta.tier
        self.file_count = meta.files
        self._allocated = meta.allocated_bytes

    def get(self, key: bytes) -> FileRecord | None:
        return _decoded(self._txn.get(key, db=self._files))

    def put(self, key: bytes, record: FileRecord) -> None:
        known = self.get(key)
        self.file_count += known is None
        self._allocated += record.allocated_bytes - (known.allocated_bytes if known else 0)
        self._txn.put(key, encode_file(record), db=self._files)

    def put_pages(self, key: bytes, size_bytes: int, pages: Mapping[int, int | None]) -> None:
        """Updates the pages of a file. `pages`: page -> checksum, or None to clear the page."""
        blocks: dict[int, BlockRecord] = {}
        for page, checksum in pages.items():
            number, inside = divmod(page, BLOCK_PAGES)
            block = blocks.get(number)
            if block is None:
                block = blocks[number] = self._block(key, size_bytes, number)
            if checksum is None:
                block.clear(inside)
            else:
                block.put(inside, checksum)
        for number, block in blocks.items():
            self._txn.put(block_key(key, number), bytes(block.data), db=self._pages)

    def _block(self, key: bytes, size_bytes: int, number: int) -> BlockRecord:
        count = block_pages(size_bytes, number)
        data = self._txn.get(block_key(key, number), db=self._pages)
        try:
            return BlockRecord(count, data)
        except ValueError:
            return BlockRecord(count)

    def delete(self, key: bytes) -> None:
        known = self.get(key)
        if known is not None:
            self.file_count -= 1
            self._allocated -= known.allocated_bytes
            self._txn.delete(key, db=self._files)
        with self._txn.cursor(self._pages) as cursor:
            found = cursor.set_range(key)
            while found and cursor.key().startswith(key):
                found = cursor.delete() and bool(cursor.key())

    def put_view(self, view: int, record: ViewRecord) -> None:
        self._txn.put(view_key(view), encode_view(record), db=self._views)

    def delete_view(self, view: int) -> None:
        self._txn.delete(view_key(view), db=self._views)

    def put_name(self, key: bytes, record: NameRecord) -> None:
        """Stores a name of a view. `key`: see `worker.store.view_records`."""
        self._txn.put(key, encode_name(record), db=self._names)

    def delete_name(self, key: bytes) -> None:
        self._txn.delete(key, db=self._names)

    def finish(self) -> None:
        meta = IndexMeta(FORMAT, self._tier, self.file_count, self._allocated)
        self._txn.put(META_KEY, encode_meta(meta), db=self._meta_db)


class Change(Protocol):
    """A change of the index. The writer thread calls `apply` once, in the order of submission."""

    def apply(self, writer: IndexWriter) -> None: ...


class Index:
    """An open LMDB environment in the directory `path` (created if missing)."""

    def __init__(self, path: str, tier: bytes) -> None:
        """Raises IndexDamaged, and OSError if the directory cannot be used."""
        self.path = path
        self.fresh = False
        self.file_count = 0  # at the last commit; in memory
        self._resident: ResidentPages | None = None
        try:
            with lock_table_in_memory(Path(path)):
                self._env = _open_environment(path)
            try:
                self.files = self._env.open_db(b"files")
                self.pages = self._env.open_db(b"pages")
                self.meta = self._env.open_db(b"meta")
                self.view_table = self._env.open_db(b"views")
                self.name_table = self._env.open_db(b"view_names")
                self._claim(tier)
            except BaseException:
                self._env.close()
                raise
        except lmdb.DiskError as err:
            raise OSError(f"the index cannot be opened: {err}") from err
        except (lmdb.Error, msgspec.DecodeError) as err:
            raise IndexDamaged(str(err)) from err

    def _claim(self, tier: bytes) -> None:
        with self._env.begin(write=True) as txn:
            data = txn.get(META_KEY, db=self.meta)
            if data is None:
                self.fresh = True
                txn.put(META_KEY, encode_meta(IndexMeta(FORMAT, tier)), db=self.meta)
                return
        meta = decode_meta(data)
        if meta.tier != tier or meta.format != FORMAT:
            raise IndexDamaged(f"it belongs to another tier, or has format {meta.format}")
        self.file_count = meta.files

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        try:
            with self._env.begin() as txn:
                yield txn
        except lmdb.Error as err:
            raise OSError(errno.EIO, f"the index cannot be read: {err}") from err

    def totals(self) -> IndexMeta:
        with self._reading() as txn:
            return decode_meta(txn.get(META_KEY, db=self.meta) or b"")

    def get(self, key: bytes) -> FileRecord | None:
        """Returns a record, or None (also if it is damaged). Raises OSError, as all reads do."""
        with self._reading() as txn:
            return _decoded(txn.get(key, db=self.files))

    def get_all(self, keys: Sequence[bytes]) -> list[FileRecord | None]:
        """Returns the records of all keys, from one snapshot, like `get`."""
        with self._reading() as txn:
            return [_decoded(txn.get(key, db=self.files)) for key in keys]

    def sums(self, key: bytes, size_bytes: int, first: int, end: int) -> dict[int, int]:
        """Returns the checksums of the present pages in [first, end)."""
        found: dict[int, int] = {}
        for number, block in self._blocks(key, size_bytes, first, end):
            at, bits = number * BLOCK_PAGES, block.bits
            for i in range(max(0, first - at), min(block.pages, end - at)):
                if bits >> i & 1:
                    found[at + i] = block.checksum(i)
        return found

    def _block(self, txn: Any, key: bytes, size_bytes: int, number: int) -> BlockRecord | None:
        """Returns a block's record; None if it does not exist or has another size."""
        data = txn.get(block_key(key, number), db=self.pages)
        try:
            return None if data is None else BlockRecord(block_pages(size_bytes, number), data)
        except ValueError:
            return None

    def bits(self, key: bytes, size_bytes: int) -> int:
        """Returns the bitmap of present pages."""
        found = 0
        for number, block in self._blocks(key, size_bytes, 0, page_count(size_bytes)):
            found |= block.bits << number * BLOCK_PAGES
        return found

    def recorded_bytes(self, key: bytes) -> int:
        """Returns the bytes of a content that are recorded as cached."""
        record = self.get(key)
        if record is None or record.complete:
            return record.size if record is not None else 0
        bits, last = self.bits(key, record.size), page_count(record.size) - 1
        short = PAGE_BYTES - range_bytes(record.size, last, last + 1)
        return bits.bit_count() * PAGE_BYTES - (short if bits >> last & 1 else 0)

    def _blocks(
        self, key: bytes, size_bytes: int, first: int, end: int
    ) -> Iterator[tuple[int, BlockRecord]]:
        """Yields the blocks with pages in [first, end)."""
        with self._reading() as txn:
            for number in range(first // BLOCK_PAGES, -(-end // BLOCK_PAGES)):
                block = self._block(txn, key, size_bytes, number)
                if block is not None:
                    yield number, block

    def scan(self, after: bytes, limit: int) -> list[tuple[bytes, FileRecord]]:
        """Returns up to `limit` records in key order whose key is greater than `after`."""
        found: list[tuple[bytes, FileRecord]] = []
        with self._reading() as txn, txn.cursor(self.files) as cursor:
            more = cursor.set_range(after + b"\0") if after else cursor.first()
            while more and len(found) < limit:
                record = _decoded(cursor.value())
                if record is not None:
                    found.append((cursor.key(), record))
                more = cursor.next()
        return found

    def views(self) -> dict[int, ViewRecord]:
        """Returns the records of all views. Raises OSError if one is damaged."""
        with self._reading() as txn, txn.cursor(self.view_table) as cursor:
            try:
                return {view_of_key(key): decode_view(value) for key, value in cursor}
            except msgspec.DecodeError as err:
                raise OSError(errno.EIO, f"the record of a view is damaged: {err}") from err

    def names(
        self, view: int, ino: int, after: bytes = b"", upto: bytes = b"", limit: int = 1 << 30
    ) -> dict[bytes, NameRecord]:
        """Returns the names of a directory of a view by their order keys, those above `after` and
        up to `upto` (b"": to the end)."""
        head = directory_key(view, ino)
        found: dict[bytes, NameRecord] = {}
        for key, record in self.scan_names(head + after, limit):
            if not key.startswith(head) or (upto and key[len(head) :] > upto):
                break
            found[key[len(head) :]] = record
        return found

    def scan_names(self, after: bytes, limit: int) -> Iterator[tuple[bytes, NameRecord]]:
        """Yields up to `limit` names of views whose keys are greater than `after`. Raises OSError
        if one is damaged."""
        with self._reading() as txn, txn.cursor(self.name_table) as cursor:
            more = cursor.set_range(after + b"\0")
            while more and limit > 0:
                try:
                    yield cursor.key(), decode_name(cursor.value())
                except msgspec.DecodeError as err:
                    raise OSError(errno.EIO, f"a name of a view is damaged: {err}") from err
                limit -= 1
                more = cursor.next()

    def write(self, changes: list[Change]) -> None:
        """Applies changes in one transaction, in the writer thread. Raises lmdb.Error, OSError:
        lmdb.PanicError if LMDB refuses all transactions until the index is opened again."""
        try:
            with self._env.begin(write=True) as txn:
                writer = IndexWriter(txn, self)
                for change in changes:
                    change.apply(writer)
                writer.finish()
        except lmdb.Error:
            with self._env.begin():  # raises PanicError if the meta page could not be written
                raise
        self.file_count = writer.file_count

    def sync(self) -> None:
        """Forces all commits to the disk, with their meta page. Raises IndexLost."""
        try:
            self._env.sync(True)
        except lmdb.Error as err:
            raise IndexLost(errno.EIO, f"the index cannot be forced to the disk: {err}") from err

    @property
    def resident_bytes(self) -> int:
        """The part of the index that is kept in memory."""
        return self._resident.resident_bytes if self._resident else 0

    def keep_in_memory(self, most_bytes: int) -> None:
        """Keeps the index in memory, up to `most_bytes` of it, as it is now: reads of it then wait
        for no disk. A later call keeps what it has gained, too. Raises OSError."""
        if self._resident is None:
            self._resident = ResidentPages(os.path.join(self.path, "data.mdb"), most_bytes)
        self._resident.refresh()

    def allocated_bytes(self) -> int:
        """Returns the disk space of the index."""
        return sum(
            os.stat(os.path.join(self.path, name)).st_blocks * 512 for name in os.listdir(self.path)
        )

    def close(self, *, in_use: bool = False) -> None:
        """Closes the index. `in_use`: a thread may still read it, so LMDB's map stays; unmapping it
        would kill the process."""
        if self._resident is not None:
            self._resident.close()
        if not in_use:
            self._env.close()


def _decoded(data: Any) -> FileRecord | None:
    try:
        return None if data is None else decode_file(data)
    except msgspec.DecodeError:
        return None


def _open_environment(path: str) -> lmdb.Environment:
    map_bytes = MAP_BYTES
    while True:
        try:
            return lmdb.open(
                path,
                map_size=map_bytes,
                max_dbs=6,
                max_readers=READERS,
                mode=0o600,
                metasync=False,
                readahead=False,
            )
        except lmdb.MemoryError:  # a limit on address space
            map_bytes //= 4
            if map_bytes < MIN_MAP_BYTES:
                raise
