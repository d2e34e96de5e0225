"""The cached pages of one file: a bitmap and the arithmetic of page ranges. Pure.

A page range is `(first, end)`: page numbers, `end` not included. The last page of a file may be
shorter than `PAGE_BYTES`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator
from typing import Final

from cachefs.core.model import PAGE_BYTES
from cachefs.core.placement import BLOCK_BYTES

PageRange = tuple[int, int]
ByteRange = tuple[int, int]  # of a file: the first byte, and the one after the last

BLOCK_PAGES: Final = BLOCK_BYTES // PAGE_BYTES  # of a block of placement


def page_count(size_bytes: int) -> int:
    """Returns the number of pages of a file; 0 for an empty one."""
    return -(-size_bytes // PAGE_BYTES)


def page_span(offset: int, size_bytes: int) -> PageRange:
    """Returns the pages that contain `size_bytes` (at least 1) at `offset`."""
    return offset // PAGE_BYTES, page_count(offset + size_bytes)


def range_bytes(file_bytes: int, first: int, end: int) -> int:
    """Returns the size of the pages [first, end) of a file."""
    return max(0, min(end * PAGE_BYTES, file_bytes) - first * PAGE_BYTES)


def cached_bytes(size_bytes: int, bitmaps: Iterable[int]) -> int:
    """Returns how many bytes of a file are in pages of any of the bitmaps."""
    bits = functools.reduce(operator.or_, bitmaps, 0)
    last = max(0, page_count(size_bytes) - 1)
    short = (last + 1) * PAGE_BYTES - size_bytes if bits >> last & 1 else 0
    return max(0, bits.bit_count() * PAGE_BYTES - short)


def split(first: int, end: int, most_pages: int) -> Iterator[PageRange]:
    """Yields parts of [first, end) of at most `most_pages`, in order, each within one block."""
    while first < end:
        stop = min(first + most_pages, end, (first // BLOCK_PAGES + 1) * BLOCK_PAGES)
        yield first, stop
        first = stop


class PageMap:
    """The cached pages of a file of fixed size. Bit i of `bits` is page i."""

    __slots__ = ("_absent", "bits", "size_bytes")

    def __init__(self, size_bytes: int, bits: int = 0) -> None:
        count = page_count(size_bytes)
        if bits >> count:
            raise ValueError(f"a page beyond the {count} of the file")
        self.size_bytes = size_bytes
        self.bits = bits
        self._absent = count - bits.bit_count()

    @property
    def complete(self) -> bool:
        return self._absent == 0

    @property
    def present_count(self) -> int:
        return self.bits.bit_count()

    @property
    def present_bytes(self) -> int:
        return self.bytes_in(0, page_count(self.size_bytes))

    def bytes_in(self, first: int, end: int) -> int:
        """Returns the size of the cached pages in [first, end)."""
        count = page_count(self.size_bytes)
        whole = (self.bits >> first & ((1 << (end - first)) - 1)).bit_count() * PAGE_BYTES
        if first < count <= end and self.has(count - 1):
            whole -= count * PAGE_BYTES - self.size_bytes
        return whole

    def has(self, page: int) -> bool:
        return bool(self.bits >> page & 1)

    def add(self, page: int) -> None:
        if not self.has(page):
            if page >= page_count(self.size_bytes):
                raise ValueError(f"page {page} is beyond the file")
            self.bits |= 1 << page
            self._absent -= 1

    def run_end(self, page: int) -> int:
        """Returns the first absent page at or after `page` (the page count if there is none)."""
        absent = ~(self.bits >> page)
        return page + (absent & -absent).bit_length() - 1

    def missing(self, first: int, end: int, taken: int = 0) -> Iterator[PageRange]:
        """Yields the absent runs in [first, end), in order. Pages in `taken` count as present."""
        have = self.bits | taken
        page = first
        while page < end:
            rest = have >> page
            absent = ~rest
            page += (absent & -absent).bit_length() - 1
            if page >= end:
                return
            rest = have >> page
            stop = page + (rest & -rest).bit_length() - 1 if rest else end
            yield page, min(stop, end)
            page = stop
