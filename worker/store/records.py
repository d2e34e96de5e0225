"""The tier's on-disk records: keys and values of its index, and the header file `TIER`.

docs/FORMAT.md describes them; `FORMAT` changes with them. Golden files in the tests hold records
of every released format.

    files   content id (36 bytes)                    -> msgpack array `FileRecord`
    pages   content id (36 bytes), block (4 BE)      -> bitmap, then xxh3_64 (8 BE) of each page
    meta    b"meta"                                  -> msgpack map `IndexMeta`

`worker.store.view_records` has those of views.

A block is 256 pages. Its record has a bit per page (page i of the block: bit i % 8 of byte i // 8)
and a checksum per page, 0 where the page is absent; its length follows from the file's size.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
import xxhash

from cachefs.core.errors import BadConfig
from cachefs.core.pages import page_count

FORMAT: Final = 1  # of the index, and of the header of a tier without views
VIEWS_FORMAT: Final = 2  # of the header of a tier with views
KEY_BYTES: Final = 36
NAME_CHARS: Final = 72
BLOCK_PAGES: Final = 256
META_KEY: Final = b"meta"
HELD_READ: Final = 1  # flag: held although it was read

_BLOCK = struct.Struct(">I")
_SUM_BYTES: Final = 8


class FileRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A cache file. Trailing fields may be added; fields are never moved.

    `epoch`: the sync epoch in which its last page was recorded. `last_use_s` and `filled_s` (the
    time of its last fill; 0: unknown, from an earlier version) are wall clock. It is not evicted
    before `held_until_s` (wall clock, 0: not held); a read ends that, unless flag `HELD_READ`.
    """

    size: int
    etag: str
    epoch: int
    allocated_bytes: int
    complete: bool
    last_use_s: int
    flags: int = 0
    filled_s: int = 0
    held_until_s: int = 0


class IndexMeta(msgspec.Struct, frozen=True):
    """The index's format, tier and totals; these change with the records, in one transaction."""

    format: int
    tier: bytes  # the UUID in the header, to detect an index of another tier
    files: int = 0
    allocated_bytes: int = 0


_encoder = msgspec.msgpack.Encoder()
_file_decoder = msgspec.msgpack.Decoder(FileRecord)
_meta_decoder = msgspec.msgpack.Decoder(IndexMeta)

encode_file = _encoder.encode
decode_file = _file_decoder.decode
encode_meta = _encoder.encode
decode_meta = _meta_decoder.decode


def block_key(key: bytes, block: int) -> bytes:
    return key + _BLOCK.pack(block)


def block_pages(size_bytes: int, block: int) -> int:
    """Returns the number of pages of a block, in a file of that size."""
    return min(BLOCK_PAGES, page_count(size_bytes) - block * BLOCK_PAGES)


class BlockRecord:
    """The pages of one block, as a mutable copy of the stored bytes."""

    __slots__ = ("_bitmap_bytes", "data", "pages")

    def __init__(self, pages: int, data: bytes | None = None) -> None:
        """Raises ValueError if the stored bytes have another length."""
        self.pages = pages
        self._bitmap_bytes = -(-pages // 8)
        length = self._bitmap_bytes + pages * _SUM_BYTES
        if data is not None and len(data) != length:
            raise ValueError(f"a block record of {len(data)} bytes instead of {length}")
        self.data = bytearray(length) if data is None else bytearray(data)

    @property
    def bits(self) -> int:
        """The bitmap of present pages; bit i: page i of the block."""
        return int.from_bytes(self.data[: self._bitmap_bytes], "little")

    def checksum(self, page: int) -> int:
        at = self._bitmap_bytes + page * _SUM_BYTES
        return int.from_bytes(self.data[at : at + _SUM_BYTES], "big")

    def put(self, page: int, checksum: int) -> None:
        self.data[page // 8] |= 1 << page % 8
        self._sum(page, checksum)

    def clear(self, page: int) -> None:
        self.data[page // 8] &= ~(1 << page % 8)
        self._sum(page, 0)

    def _sum(self, page: int, checksum: int) -> None:
        at = self._bitmap_bytes + page * _SUM_BYTES
        self.data[at : at + _SUM_BYTES] = checksum.to_bytes(_SUM_BYTES, "big")


class Header(msgspec.Struct, frozen=True):
    """The file `TIER`.

    Epochs count the syncs of the file system. A crash of the machine may lose pages recorded in an
    epoch above `synced_epoch`; `epoch` is the highest that may have been used. `distrusted` are
    ranges (after, up to) of epochs whose records are verified before use, after a crash of the
    machine or a failed sync.
    """

    tier: bytes
    boot: bytes
    epoch: int = 1
    synced_epoch: int = 0
    distrusted: tuple[tuple[int, int], ...] = ()
    views: bool = False  # the tier has views: an earlier version would evict their files

    def trusts(self, epoch: int) -> bool:
        return not any(after < epoch <= up_to for after, up_to in self.distrusted)


UNSETTLED: Final = b"\xff" * 16  # no boot id: `pub/` may have distrusted files
_MAGIC: Final = b"CFSTIER\0"
_HEADER: Final = struct.Struct(">8sI16s16sQQI")
_RANGE: Final = struct.Struct(">QQ")
_CHECK: Final = struct.Struct(">Q")
MOST_RANGES: Final = 64
assert _HEADER.size == 64


def encode_header(header: Header) -> bytes:
    data = _HEADER.pack(
        _MAGIC, VIEWS_FORMAT if header.views else FORMAT, header.tier, header.boot, header.epoch,
        header.synced_epoch, len(header.distrusted),
    )  # fmt: skip
    data += b"".join(_RANGE.pack(*pair) for pair in header.distrusted)
    return data + _CHECK.pack(xxhash.xxh3_64_intdigest(data))


def decode_header(data: bytes) -> Header | None:
    """Returns the header; None if it is damaged. Raises BadConfig for a newer format."""
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        return None
    _, form, tier, boot, epoch, synced, count = _HEADER.unpack_from(data)
    if form > VIEWS_FORMAT:
        raise BadConfig(
            f"the cache directory has format {form}, this version knows up to {VIEWS_FORMAT}",
            remedy="use a newer version, or another --cache-dir",
        )
    end = _HEADER.size + count * _RANGE.size
    if len(data) != end + _CHECK.size or count > MOST_RANGES:
        return None
    if _CHECK.unpack_from(data, end)[0] != xxhash.xxh3_64_intdigest(data[:end]):
        return None
    ranges = tuple(_RANGE.iter_unpack(data[_HEADER.size : end]))
    return Header(tier, boot, epoch, synced, ranges, form == VIEWS_FORMAT)


def next_start(header: Header, boot: bytes) -> Header:
    """Returns the header of a process that takes the tier over: with a new epoch, and after another
    boot with the unsynced epochs distrusted. Epochs up to `epoch + 1` may have been used, since a
    sync begins the next epoch before it writes the header."""
    used = header.epoch + 1
    distrusted = header.distrusted
    if boot != header.boot:
        distrusted = _merged((*distrusted, (header.synced_epoch, used)))
    return Header(header.tier, boot, used + 1, header.synced_epoch, distrusted, header.views)


def synced(header: Header, epoch: int) -> Header:
    """Returns the header after everything recorded up to `epoch` was forced to the disk."""
    return Header(header.tier, header.boot, epoch + 1, epoch, header.distrusted, header.views)


def failed(header: Header, epoch: int) -> Header:
    """Returns the header after a failed sync of everything recorded up to `epoch`. It distrusts all
    epochs since the last good sync and `epoch + 1`, which began before this sync. The boot id is
    `UNSETTLED` until their files are unpublished: a start with that id treats the tier as after a
    crash of the machine."""
    used = epoch + 1
    distrusted = _merged((*header.distrusted, (header.synced_epoch, used)))
    return Header(header.tier, UNSETTLED, used + 1, header.synced_epoch, distrusted, header.views)


def _merged(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Limits the ranges to `MOST_RANGES`: drops those that the last range covers, and merges the
    two oldest into one that covers both (more is verified then)."""
    after, up_to = ranges[-1]
    ranges = (*(one for one in ranges[:-1] if one[0] < after or one[1] > up_to), ranges[-1])
    while len(ranges) > MOST_RANGES:
        ranges = ((ranges[0][0], ranges[1][1]), *ranges[2:])
    return ranges
