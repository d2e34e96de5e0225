"""Encoded pages of directory listings, bounded in bytes. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from cachefs.core.messages import Listing

DEFAULT_BYTES: Final = 32 << 20

Place = tuple[bytes, int]  # after, limit
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Listing).decode


class Kept(NamedTuple):
    body: bytes
    expires_at: float


class ListingPages:
    """The cached pages, by directory. Evicts the least recently used directory with all pages."""

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._directories: OrderedDict[int, dict[Place, Kept]] = OrderedDict()
        self.size_bytes = 0

    def get(self, ino: int, after: bytes, limit: int) -> tuple[Listing, float] | None:
        """Returns a page, even an expired one, and its `expires_at`."""
        kept = self._directories.get(ino, {}).get((after, limit))
        if kept is None:
            return None
        self._directories.move_to_end(ino)
        return _decode(kept.body), kept.expires_at

    def put(self, ino: int, after: bytes, limit: int, page: Listing, expires_at: float) -> None:
        pages = self._directories.setdefault(ino, {})
        self._directories.move_to_end(ino)
        former = pages.get((after, limit))
        pages[after, limit] = kept = Kept(_encode(page), expires_at)
        self.size_bytes += len(kept.body) - (len(former.body) if former is not None else 0)
        while self.size_bytes > self._limit_bytes:
            self.drop(next(iter(self._directories)))

    def drop(self, ino: int) -> None:
        for kept in self._directories.pop(ino, {}).values():
            self.size_bytes -= len(kept.body)

    def clear(self) -> None:
        self._directories.clear()
        self.size_bytes = 0
