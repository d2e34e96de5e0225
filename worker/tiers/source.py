"""Fills of one tier from the others of the node, before anybody else is asked: how a content moves.

Pages are verified against their recorded checksums as they are read, so nothing wrong moves. A page
that is wrong, or cannot be read in time, comes from the next source, as does what no tier has.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence

import xxhash

from cachefs.core.model import PAGE_BYTES, Origin
from worker.parts import Parts
from worker.source import Purpose, Source, SourceBody
from worker.state.pages import range_bytes
from worker.store.tier import Tier
from worker.tiers.body import TierBody
from worker.tiers.reading import DiskReader, GivenUp

log = logging.getLogger(__name__)

Others = Callable[[], Sequence[Parts]]
OnBad = Callable[[Parts, bytes, int], None]  # tier, content key, page; from a thread


class TierSource:
    """The source of one tier's fills (`worker.source.Source`). `others`: the other tiers; asked in
    threads. `on_bad` hears of pages that are not what their checksums say."""

    def __init__(self, then: Source, others: Others, reader: DiskReader, on_bad: OnBad) -> None:
        self._then = then
        self._others = others
        self._reader = reader
        self._on_bad = on_bad

    def waits_for_peers(self, origin: Origin, offset: int) -> bool:
        """As of the next source: what other tiers have is not known without their disks."""
        return self._then.waits_for_peers(origin, offset)

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        """See `Source`; `offset` is that of a page."""
        key = origin.content.key
        for parts in self._others():
            if parts.health.in_service and (not parts.order_known or key in parts.order):
                sums = self._sums(parts, key, origin.size, offset, size)
                if sums:
                    return _Body(self, parts, origin, offset, size, sums, purpose)
        return self._then.read(origin, offset, size, purpose)

    def _sums(self, parts: Parts, key: bytes, file_bytes: int, offset: int, size: int) -> list[int]:
        """The checksums of those pages from `offset` on that the tier has."""
        first = offset // PAGE_BYTES
        end = -(-(offset + size) // PAGE_BYTES)
        try:
            record = parts.tier.index.get(key)
            if (
                record is None
                or record.size != file_bytes
                or not _trusted(parts.tier, record.epoch)
            ):
                return []
            known = parts.tier.index.sums(key, file_bytes, first, end)
        except OSError as err:
            log.warning("%s: its index cannot be read: %s", parts.tier.path, err)
            return []
        sums: list[int] = []
        while (sum := known.get(first + len(sums))) is not None:
            sums.append(sum)
        return sums

    # ---- for bodies ----

    def rest(self, origin: Origin, offset: int, size: int, purpose: Purpose) -> SourceBody:
        return self._then.read(origin, offset, size, purpose)

    def pages(
        self, parts: Parts, origin: Origin, first: int, sums: Sequence[int]
    ) -> Generator[tuple[memoryview, int], None, None]:
        """Right pages, as far as there are such."""
        key = origin.content.key
        try:
            fd = parts.tier.open_file(key.hex(), os.O_RDONLY)
        except OSError:  # on its way out, or the disk fails
            fd = None
        if fd is None:
            return
        buffer = memoryview(bytearray(min(PAGE_BYTES, origin.size)))
        try:
            for page, checksum in enumerate(sums, first):
                part = buffer[: range_bytes(origin.size, page, page + 1)]
                self._reader.read(parts, fd, part, page * PAGE_BYTES)
                if xxhash.xxh3_64_intdigest(part) != checksum:
                    return self._on_bad(parts, key, page)
                yield part, checksum
        except GivenUp:
            fd = -1
        except OSError as err:
            log.warning("%s: %s cannot be read: %s", parts.tier.path, key.hex(), err.strerror)
        finally:
            if fd >= 0:
                os.close(fd)


class _Body(TierBody):
    """Pages of another tier, then what the next source says."""

    def __init__(
        self,
        source: TierSource,
        parts: Parts,
        origin: Origin,
        offset: int,
        size: int,
        sums: Sequence[int],
        purpose: Purpose,
    ) -> None:
        super().__init__()
        self._source = source
        self._parts = parts
        self._origin = origin
        self._at = offset
        self._end = offset + size
        self._sums = sums
        self._purpose = purpose
        self._pages: Generator[tuple[memoryview, int], None, None] | None = None
        self._thread = 0  # which reads it
        self._rest: SourceBody | None = None
        self._closed = False

    @property
    def from_peer(self) -> bool:
        return self._rest is not None and self._rest.from_peer

    @property
    def checksum(self) -> int | None:
        return self._checksum if self._rest is None else self._rest.checksum

    def __iter__(self) -> Iterator[memoryview]:
        self.from_tier = True
        first = self._at // PAGE_BYTES
        self._thread = threading.get_ident()
        self._pages = self._source.pages(self._parts, self._origin, first, self._sums)
        for page, checksum in self._pages:
            if self._closed:
                return
            self._checksum = checksum
            yield page
            self._at += len(page)
        self.from_tier = False
        if self._at < self._end and not self._closed:
            size = self._end - self._at
            self._rest = self._source.rest(self._origin, self._at, size, self._purpose)
            yield from self._rest

    def close(self) -> None:
        """See `SourceBody`. The file is closed by the thread that reads it, which comes here too:
        nothing else may close a descriptor that is being read from."""
        self._closed = True
        if self._pages is not None and self._thread == threading.get_ident():
            self._pages.close()
        if self._rest is not None:
            self._rest.close()


def _trusted(tier: Tier, epoch: int) -> bool:
    return tier.header.trusts(epoch)
