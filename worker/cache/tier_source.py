"""Fills of one tier from the others of the node, before any other source: the way a content moves.

Pages are verified against their recorded checksums as they are read, so no damaged page moves. A
page that is damaged, or cannot be read in time, is read from the next source, as is what no tier
has.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import xxhash

from cachefs.core.model import PAGE_BYTES, Origin
from cachefs.core.pages import page_span, range_bytes
from connectors.fetch.request import RangeRequest
from worker.fill.clipped import clipped
from worker.fill.source import Purpose, Source, SourceBody
from worker.fill.tier_body import TierBody
from worker.store.cached_file import Run, open_run
from worker.store.directory import TierDirectory
from worker.tier.contents import Contents
from worker.tier.disk import TierDisk
from worker.tier.guarded_reads import DiskReader, GivenUp

log = logging.getLogger(__name__)


class OtherTier(NamedTuple):
    """Another tier of the node, as its threads may use it."""

    disk: TierDisk
    contents: Contents


Others = Callable[[], Sequence[OtherTier]]
OnBad = Callable[[TierDisk, bytes, int], None]  # tier, content key, page; from a thread


class TierSource:
    """The source of one tier's fills (`worker.fill.source.Source`). `others` returns the other
    tiers, and is called in threads. `on_bad` is called with pages that do not match their
    checksums."""

    def __init__(self, then: Source, others: Others, reader: DiskReader, on_bad: OnBad) -> None:
        self.then = then
        self.reader = reader
        self.on_bad = on_bad
        self._others = others

    def waits_for_peers(self, origin: Origin, offset: int) -> int | None:
        """Returns the answer of the next source: what other tiers have is not known without their
        disks."""
        return self.then.waits_for_peers(origin, offset)

    def has_stand_in(self, origin: Origin, offset: int) -> bool:
        """See `Source`."""
        return self.then.has_stand_in(origin, offset)

    def ask(self, origin: Origin, offset: int, size: int) -> RangeRequest | None:
        """See `Source`."""
        may_be_here = any(self._may_have(other, origin.content.key) for other in self._others())
        return None if may_be_here else self.then.ask(origin, offset, size)

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        """See `Source`."""
        key = origin.content.key
        first, end = page_span(offset, size)
        pages = first * PAGE_BYTES, range_bytes(origin.size, first, end)
        for other in self._others():
            if self._may_have(other, key):
                found = self._find(other.disk, origin, first, end)
                if found is not None:
                    body = _Body(self, other.disk, origin, *pages, found, purpose)
                    return clipped(body, origin.size, (first, end), (offset, offset + size))
        return self.then.read(origin, offset, size, purpose)

    def _may_have(self, other: OtherTier, key: bytes) -> bool:
        contents = other.contents
        return other.disk.health.in_service and (not contents.order_known or key in contents.order)

    def _find(self, disk: TierDisk, origin: Origin, first: int, end: int) -> Run | None:
        look = functools.partial(_look, disk.directory, origin.content.key, origin.size, first, end)
        try:
            return self.reader.call(disk, look, _discard)
        except OSError as err:
            log.warning(
                "%s: nothing is read from there: %s", disk.directory.path, err.strerror or err
            )
            return None


class _Body(TierBody):
    """Pages of another tier, then those of the next source. Made and read by one thread."""

    def __init__(
        self,
        source: TierSource,
        disk: TierDisk,
        origin: Origin,
        offset: int,
        size: int,
        found: Run,
        purpose: Purpose,
    ) -> None:
        super().__init__()
        self._source = source
        self._disk = disk
        self._origin = origin
        self._at = offset
        self._end = offset + size
        self._fd, _, self._sums = found
        self._purpose = purpose
        self._thread = threading.get_ident()
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
        for page in self._pages():
            yield page
            self._at += len(page)
        self.from_tier = False
        self._close_file()
        if self._at < self._end and not self._closed:
            size = self._end - self._at
            self._rest = self._source.then.read(self._origin, self._at, size, self._purpose)
            yield from self._rest

    def _pages(self) -> Iterator[memoryview]:
        """Right pages, as far as there are such."""
        first = self._at // PAGE_BYTES
        buffer = memoryview(bytearray(min(PAGE_BYTES, self._origin.size)))
        for page, checksum in enumerate(self._sums, first):
            part = buffer[: range_bytes(self._origin.size, page, page + 1)]
            if self._closed or not self._read(page, part):
                return
            if xxhash.xxh3_64_intdigest(part) != checksum:
                return self._source.on_bad(self._disk, self._origin.content.key, page)
            self._checksum = checksum
            yield part

    def _read(self, page: int, part: memoryview) -> bool:
        fd = self._fd
        fill = functools.partial(_fill, fd, part, page * PAGE_BYTES)
        try:
            self._source.reader.call(self._disk, fill, lambda _: _close(fd))
        except GivenUp:
            self._fd = -1  # it is closed when the disk answers
            return False
        except OSError as err:
            log.warning("%s: a page cannot be read: %s", self._disk.directory.path, err.strerror)
            return False
        return True

    def close(self) -> None:
        """See `SourceBody`. The file is closed by the thread that reads it, which calls this too:
        no other thread may close a descriptor that is being read from."""
        self._closed = True
        if self._thread == threading.get_ident():
            self._close_file()
        if self._rest is not None:
            self._rest.close()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


# ---- in threads of that tier ----


def _look(tier: TierDirectory, key: bytes, file_bytes: int, first: int, end: int) -> Run | None:
    """Opens what a tier has of some pages; None where not even the first page is cached, or
    trusted. Raises OSError."""
    record = tier.index.get(key)
    if record is None or record.size != file_bytes or not tier.header.trusts(record.epoch):
        return None
    return open_run(tier, key, record, first, end)


def _discard(found: Run | None) -> None:
    if found is not None:
        _close(found.fd)


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):  # of a disk that fails: it is closed all the same
        os.close(fd)


def _fill(fd: int, buffer: memoryview, offset: int) -> None:
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if not count:
            raise OSError(errno.EIO, "the file is shorter than its record says")
        done += count
