"""Open directories: pages of a listing, and cookies that find their place again.

A cookie is `ordinal << 32 | crc32(name)` of the entry after which reading goes on. The ordinal
finds the page (each page's start is remembered, so any place is one request away; a process that
knows no pages counts from the start), the checksum finds the entry in it, also when others came or
went before it. Only when its page had to be listed anew, and the entry is gone or was pushed to a
later page, is the place one by count. `.` and `..` have the ordinals 1 and 2.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

from cachefs.core.errors import NotFound
from cachefs.core.model import Inode

DOTS: Final = 2
HASH_BITS: Final = 32
_HASH_MASK: Final = (1 << HASH_BITS) - 1
MAX_MARKS: Final = 4096


class Row(NamedTuple):
    """One name of a directory."""

    name: bytes
    inode: Inode


class Entry(NamedTuple):
    """What a transport emits; `cookie` continues after this entry."""

    name: bytes
    inode: Inode
    valid_for_s: float
    cookie: int


class Page(NamedTuple):
    """A part of a listing. `start`: index of its first row in the directory. `asked_at`: position
    of the invalidations when it was asked for."""

    start: int
    rows: list[Row]
    next: bytes  # order key to go on after; b"" at the end
    expires_at: float
    asked_at: int

    @property
    def end(self) -> int:
        return self.start + len(self.rows)


class Mark(NamedTuple):
    """A page starts at row `start` of the directory, after the order key `after`."""

    start: int
    after: bytes


FIRST: Final = Mark(0, b"")


class GoTo(NamedTuple):
    """Get this page first; `exactly`: reading goes on at its first row."""

    mark: Mark
    exactly: bool = False


def cookie_of(ordinal: int, name: bytes) -> int:
    """A positive 63-bit number (31 bits of ordinal)."""
    return ordinal << HASH_BITS | crc32(name)


class DirectoryHandle:
    """One open directory: where its pages start, and the page being read."""

    __slots__ = ("ino", "marks", "page", "pid")

    def __init__(self, ino: int, pid: int) -> None:
        self.ino = ino
        self.pid = pid
        self.marks: list[Mark] = [FIRST]
        self.page: Page | None = None

    def rewind(self) -> None:
        """What was listed is forgotten: the next read sees the directory as it is then."""
        self.page = None
        self.marks = [FIRST]

    def put(self, page: Page) -> None:
        """Takes the page that was asked for and remembers where the next one starts."""
        self.page = page
        if page.next and page.end > self.marks[-1].start:
            self.marks.append(Mark(page.end, page.next))
            if len(self.marks) > MAX_MARKS:  # every other place then takes a request more
                del self.marks[1::2]

    def mark_before(self, index: int) -> Mark:
        """The last known page start at or before row `index` (the first page for a negative)."""
        return next((mark for mark in reversed(self.marks) if mark.start <= index), FIRST)

    def position(self, cookie: int) -> int | GoTo:
        """The row of the current page to go on at (its length: the end of the directory), or the
        page to get first."""
        ordinal, checksum = cookie >> HASH_BITS, cookie & _HASH_MASK
        index = max(0, ordinal - DOTS)  # of the row to emit next
        page = self.page
        if page is None:
            return GoTo(self.mark_before(index - 1))
        if page.start == index:
            return self.first_row()
        if page.start < index <= page.end:
            found = _row_after(page, checksum, index - page.start)
            return self._row(page, index - page.start if found is None else found)
        if index < page.start:
            return GoTo(self.mark_before(index - 1))
        found = _row_after(page, checksum, len(page.rows))
        return self._row(page, found) if found is not None else self._later(page, index)

    def first_row(self) -> int | GoTo:
        """The first row of the current page, or the page after an empty one."""
        assert self.page is not None
        return self._row(self.page, 0)

    @staticmethod
    def _row(page: Page, place: int) -> int | GoTo:
        if place < len(page.rows) or not page.next:
            return place
        return GoTo(Mark(page.end, page.next), exactly=True)

    def _later(self, page: Page, index: int) -> int | GoTo:
        """Of a row beyond the current page, from a process that did not list it."""
        if not page.next:  # the directory shrank
            return len(page.rows)
        mark = self.mark_before(index - 1)
        return GoTo(mark if mark.start > page.start else Mark(page.end, page.next))


def _row_after(page: Page, checksum: int, guess: int) -> int | None:
    """The place after the row with this checksum, which should stand just before `guess`."""
    if guess and crc32(page.rows[guess - 1].name) == checksum:
        return guess
    for number, row in enumerate(page.rows, start=1):
        if crc32(row.name) == checksum:
            return number
    return None


class DirectoryTable:
    """Open directories by number."""

    def __init__(self) -> None:
        self._handles: dict[int, DirectoryHandle] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, fh: int) -> bool:
        return fh in self._handles

    def add(self, handle: DirectoryHandle, fh: int = 0) -> int:
        """Its number: `fh`, or the next one."""
        if not fh:
            self._last += 1
            fh = self._last
        self._handles[fh] = handle
        return fh

    def get(self, fh: int) -> DirectoryHandle:
        """Raises NotFound for a number that is not open."""
        handle = self._handles.get(fh)
        if handle is None:
            raise NotFound(f"directory handle {fh} is not open")
        return handle

    def remove(self, fh: int) -> None:
        self._handles.pop(fh, None)
