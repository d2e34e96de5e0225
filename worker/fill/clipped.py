"""The requested part of a body, for sources that deliver whole pages."""

from __future__ import annotations

from collections.abc import Iterator

from cachefs.core.model import PAGE_BYTES
from cachefs.core.pages import ByteRange, PageRange, range_bytes
from worker.fill.source import SourceBody
from worker.fill.tier_body import TierBody


class Clipped(TierBody):
    """A body's bytes [start, stop); the body begins at `offset`. Has no page checksums."""

    def __init__(self, body: SourceBody, offset: int, start: int, stop: int) -> None:
        super().__init__()
        self._body = body
        self._at = offset
        self._start = start
        self._stop = stop

    @property
    def from_peer(self) -> bool:
        return self._body.from_peer

    def __iter__(self) -> Iterator[memoryview]:
        for chunk in self._body:
            self.from_tier = isinstance(self._body, TierBody) and self._body.from_tier
            first = max(0, self._start - self._at)
            end = max(first, min(len(chunk), self._stop - self._at))
            self._at += len(chunk)
            if end > first:
                yield memoryview(chunk)[first:end]

    def close(self) -> None:
        """See `SourceBody`."""
        self._body.close()


def clipped(body: SourceBody, file_bytes: int, pages: PageRange, span: ByteRange) -> SourceBody:
    """Returns the bytes `span` of a body of these pages, or the body itself if `span` is all."""
    offset = pages[0] * PAGE_BYTES
    if span == (offset, offset + range_bytes(file_bytes, *pages)):
        return body
    return Clipped(body, offset, *span)
