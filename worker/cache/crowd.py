"""Reads of far more readers than the room for segments is large enough for. Owned by the loop.

Each read gets a part (`worker.fill.shares`): the bytes of its request, fetched once, in memory, for
that read alone. Parts are served in the order of their requests (`worker.fill.segments`). The
client closes a part when it has answered the read of its last byte.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import CacheFSError, NoSpace
from cachefs.core.messages import Ensured
from worker.fill.fetch import Part, Piece
from worker.fill.shares import part_of

if TYPE_CHECKING:
    from cachefs.core.pages import ByteRange
    from worker.cache.handles import Handle
    from worker.fill.fill import Filler
    from worker.fill.segment import Segment
    from worker.fill.segments import Segments
    from worker.tier.entry import Entry

ATTEMPTS: Final = 8  # of one read: each ends with bytes, an error, or lost room
AT_ONCE: Final = 0  # of `Ensured.keep`: the client closes a part when it was read


class Crowd:
    """See the module."""

    def __init__(self, segments: Segments, filler: Filler) -> None:
        self._segments = segments
        self._filler = filler

    async def read(
        self, handle: Handle, offset: int, size_bytes: int
    ) -> tuple[Ensured, int | None]:
        """Fetches bytes from `offset` on and returns them, or what they can be read from. Raises
        the error of the fill, NoSpace. Cancelled: what has not begun does not."""
        entry = handle.entry
        assert entry is not None
        span = part_of(offset, size_bytes, entry.size)
        for _ in range(ATTEMPTS):
            entry.raise_failed()
            part = self._new(entry, span)
            self._filler.start(part)
            try:
                await part.done
                segment = part.segment
                if segment is not None and segment.is_whole and not segment.dropped:
                    return await self._grant(handle, segment)
            finally:
                self._leave(part)
        raise NoSpace("there is not enough memory to read this file past the cache")

    def _new(self, entry: Entry, span: ByteRange) -> Part:
        part = Part(entry, span, asyncio.get_running_loop().create_future())
        part.purpose, _ = self._filler.purpose_of_read(part)  # as of a page
        part.ended = self._ended
        return part

    async def _grant(self, handle: Handle, segment: Segment) -> tuple[Ensured, int | None]:
        """Raises OSError when no descriptor is left."""
        start, stop = segment.span
        if segment.area.copied and handle.takes_bytes:
            data = self._segments.copy(segment, start, stop, is_sequential=False)
            return Ensured(start, stop, keep=AT_ONCE, data=data), None
        fd = await self._segments.grant(segment)
        return Ensured(start, stop, base=start, segment=True, keep=AT_ONCE), fd

    def _leave(self, part: Part) -> None:
        part.has_reader = False
        part.unsettled.clear()
        if part.segment is not None:
            self._segments.drop(part.segment)

    def _ended(self, part: Piece, error: CacheFSError | None) -> None:
        """Drops a part that was filled after its reader had left."""
        assert isinstance(part, Part)
        if not part.has_reader and part.segment is not None:
            self._segments.drop(part.segment)
