"""The pages of an HDFS directory: the library's iterator, which requests 1,000 names at a time.

Memory holds one page, however large the directory is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import NotFound
from connectors import keys
from connectors.base import Entry, Page

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

PAGE_ENTRIES: Final = 1000
_SIGNED: Final = bytes((byte + 128) % 256 for byte in range(256))


def listing_key(name: bytes) -> bytes:
    """Returns the sort key of a name in HDFS's order, which compares bytes as signed numbers."""
    return name.translate(_SIGNED)


class HdfsListing:
    """A directory's listing in progress. After an error, `take` iterates again and skips the names
    that it has returned."""

    def __init__(self, path: str, entry_of: Callable[[FileStatus, bytes], Entry | None]) -> None:
        """`entry_of` returns None for what is hidden."""
        self._path = path
        self._entry_of = entry_of
        self._statuses: Iterator[FileStatus] | None = None
        self._last_key = b""  # of the names returned
        self._is_skipping = False
        self.is_done = False

    def take(self, client: Client) -> Page:
        """Returns the next page, which is empty while names are skipped. Raises NotFound for a
        file, and the library's errors."""
        statuses = self._statuses or client.list_status(self._path)
        self._is_skipping |= self._statuses is None and bool(self._last_key)
        self._statuses = None  # an error ends the iteration
        found = list(islice(statuses, PAGE_ENTRIES))
        self._statuses, self.is_done = statuses, len(found) < PAGE_ENTRIES
        if len(found) == 1 and found[0].path == self._path and not found[0].isdir:
            raise NotFound("not a directory", path=self._path)  # a file lists itself
        return self._page([(_name(status), status) for status in found])

    def _page(self, named: list[tuple[bytes, FileStatus]]) -> Page:
        if self._is_skipping:
            named = [each for each in named if listing_key(each[0]) > self._last_key]
            self._is_skipping = not named
        if named:
            self._last_key = listing_key(named[-1][0])
        found = [self._entry_of(status, name) for name, status in named if keys.visible(name)]
        entries = [entry for entry in found if entry is not None]
        return Page(entries, len(named) - len(entries))


def _name(status: FileStatus) -> bytes:
    return status.path.rpartition("/")[2].encode()
