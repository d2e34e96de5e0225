"""Open directories: pages of a listing, and the cookies that resume it.

A cookie is `ordinal << 32 | crc32(name)` of the entry after which reading continues. The ordinal
finds the page: each page's start is kept, so any position costs one request; a process that knows
no pages counts from the start. The checksum finds the entry in the page, even after entries before
it were added or removed. The ordinal alone decides only if the page was listed again and the entry
was removed or moved to a later page. `.` and `..` have the ordinals 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from cachefs.core.errors import NotFound
from cachefs.core.model import Inode, Kind

DOTS: Final = 2
HASH_BITS: Final = 32
_HASH_MASK: Final = (1 << HASH_BITS) - 1
MAX_MARKS: Final = 4096


class Entry(NamedTuple):
    """An entry for the transport; `cookie` continues after this entry."""

    name: bytes
    inode: Inode
    valid_for_s: float
    cookie: int


class Page(NamedTuple):
    """A part of a listing: names, and the inodes of the same rows. `start`: index of its first row
    in the directory. `asked_at`: position of the invalidation log when the request was sent."""

    start: int
    names: list[bytes]
    inodes: list[Inode]
    next: bytes  # order key after which the next page starts; b"" at the end
    expires_at: float
    asked_at: int

    @property
    def end(self) -> int:
        return self.start + len(self.names)


@dataclass(eq=False, slots=True)
class Entries:
    """The entries after a cookie: `dots`, then the rows of a page from `place` on. They are valid
    for `valid_for_s`, but for those of which the test that `find_outdated` returns (None: all are
    valid) is True."""

    dots: list[Entry]
    page: Page
    place: int
    valid_for_s: float
    find_outdated: Callable[[], Callable[[bytes], bool] | None]

    @property
    def ordinal(self) -> int:
        """The ordinal of the first row."""
        return self.page.start + self.place + DOTS + 1

    def __iter__(self) -> Iterator[Entry]:
        yield from self.dots
        names, inodes, outdated = self.page.names, self.page.inodes, self.find_outdated()
        for ordinal, number in enumerate(range(self.place, len(names)), self.ordinal):
            name = names[number]
            known_s = 0.0 if outdated is not None and outdated(name) else self.valid_for_s
            yield Entry(name, inodes[number], known_s, cookie_of(ordinal, name))


class Mark(NamedTuple):
    """The start of a page: row `start` of the directory, after the order key `after`."""

    start: int
    after: bytes


FIRST: Final = Mark(0, b"")


class FetchPage(NamedTuple):
    """A page to fetch first; `exactly`: reading continues at its first row."""

    mark: Mark
    exactly: bool = False


def cookie_of(ordinal: int, name: bytes) -> int:
    """Returns a positive 63-bit number (31 bits of ordinal)."""
    return ordinal << HASH_BITS | crc32(name)


def dots_after(cookie: int, ino: int, parent: int) -> list[Entry]:
    """Returns `.` and `..` of a directory, as far as they follow a cookie. No reply grants that
    they are valid for any time."""
    if cookie >> HASH_BITS >= DOTS:
        return []
    dots = [
        Entry(b".", Inode(ino, Kind.DIRECTORY), 0.0, cookie_of(1, b".")),
        Entry(b"..", Inode(parent, Kind.DIRECTORY), 0.0, cookie_of(2, b"..")),
    ]
    return dots[cookie >> HASH_BITS :]


class DirectoryHandle:
    """An open directory: the starts of its pages, and the page being read."""

    __slots__ = ("ino", "marks", "page", "pid")

    def __init__(self, ino: int, pid: int) -> None:
        self.ino = ino
        self.pid = pid
        self.marks: list[Mark] = [FIRST]
        self.page: Page | None = None

    def rewind(self) -> None:
        """Drops the listing: the next read fetches the directory again."""
        self.page = None
        self.marks = [FIRST]

    def put(self, page: Page) -> None:
        """Uses a fetched page and records where the next one starts."""
        self.page = page
        if page.next and page.end > self.marks[-1].start:
            self.marks.append(Mark(page.end, page.next))
            if len(self.marks) > MAX_MARKS:  # half of the positions then cost one more request
                del self.marks[1::2]

    def mark_before(self, index: int) -> Mark:
        """Returns the last known page start at or before row `index` (the first if negative)."""
        return next((mark for mark in reversed(self.marks) if mark.start <= index), FIRST)

    def position(self, cookie: int) -> int | FetchPage:
        """Returns the row of the current page at which reading continues (its length: the end of
        the directory), or the page to fetch first."""
        ordinal, checksum = cookie >> HASH_BITS, cookie & _HASH_MASK
        index = max(0, ordinal - DOTS)  # of the row to emit next
        page = self.page
        if page is None:
            return FetchPage(self.mark_before(index - 1))
        if page.start == index:
            return self.first_row()
        if page.start < index <= page.end:
            found = _row_after(page, checksum, index - page.start)
            return self._row(page, index - page.start if found is None else found)
        if index < page.start:
            return FetchPage(self.mark_before(index - 1))
        found = _row_after(page, checksum, len(page.names))
        return self._row(page, found) if found is not None else self._later(page, index)

    def first_row(self) -> int | FetchPage:
        """Returns the first row of the current page, or the page after an empty one."""
        assert self.page is not None
        return self._row(self.page, 0)

    @staticmethod
    def _row(page: Page, place: int) -> int | FetchPage:
        if place < len(page.names) or not page.next:
            return place
        return FetchPage(Mark(page.end, page.next), exactly=True)

    def _later(self, page: Page, index: int) -> int | FetchPage:
        """Resolves a row beyond the current page, from a cookie of a previous process."""
        if not page.next:  # the directory shrank
            return len(page.names)
        mark = self.mark_before(index - 1)
        return FetchPage(mark if mark.start > page.start else Mark(page.end, page.next))


def _row_after(page: Page, checksum: int, guess: int) -> int | None:
    """Returns the index after the row with this checksum, or None. Tries `guess` first."""
    if guess and crc32(page.names[guess - 1]) == checksum:
        return guess
    for number, name in enumerate(page.names, start=1):
        if crc32(name) == checksum:
            return number
    return None


class DirectoryTable:
    """The open directories by number."""

    def __init__(self) -> None:
        self._handles: dict[int, DirectoryHandle] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, fh: int) -> bool:
        return fh in self._handles

    def add(self, handle: DirectoryHandle, fh: int = 0) -> int:
        """Adds a handle. Returns its number: `fh`, or the next one if `fh` is 0."""
        if not fh:
            self._last += 1
            fh = self._last
        self._handles[fh] = handle
        return fh

    def get(self, fh: int) -> DirectoryHandle:
        """Returns a handle. Raises NotFound for a number that is not open."""
        handle = self._handles.get(fh)
        if handle is None:
            raise NotFound(f"directory handle {fh} is not open")
        return handle

    def remove(self, fh: int) -> None:
        self._handles.pop(fh, None)
