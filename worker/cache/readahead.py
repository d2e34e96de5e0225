"""The read-ahead of one open handle. Pure.

A handle may be read as several streams (threads of one process, a reader of two columns): the last
few are distinguished by their next offsets. Sequential reads double a stream's window up to a cap.
A read elsewhere is a new stream, whose window opens only after reads that continue each other, so
that random reads fetch nothing in excess. Requests of a kernel that reads ahead arrive several at a
time and unordered: a step back within the window changes nothing. Skips forward of a few pages keep
an open window (a reader that leaves out parts of records), longer ones halve it. Fetching starts
again when half of the window is used up, so that requests stay large.
"""

from __future__ import annotations

from typing import Final

FIRST_WINDOW_BYTES: Final = 2 << 20
MOST_WINDOW_BYTES: Final = 64 << 20
BACK_BYTES: Final = 1 << 20  # a step back that is no jump while the window is closed
NEAR_BYTES: Final = 256 << 10  # a forward step of up to this always continues
KEEP_BYTES: Final = 4 << 20  # a skip of up to this keeps an open window as it is
SKIP_BYTES: Final = 8 << 20  # the longest step, either way, that continues in an open window
STREAK: Final = 2  # reads that continue each other before the window opens
STREAMS: Final = 4  # of one handle


class _Stream:
    """`expected`: the offset of the next sequential read. `ahead`: the end of what was
    requested."""

    __slots__ = ("ahead", "expected", "streak", "window_bytes")

    def __init__(self, offset: int, demand: int) -> None:
        self.expected = demand
        self.ahead = demand
        self.streak = STREAK - 1 if offset == 0 else 0  # most who start at the beginning go on
        self.window_bytes = 0

    def distance(self, offset: int) -> int | None:
        """Returns how far `offset` is from the next one of the stream; None: it is another's."""
        gap = offset - self.expected
        reach = min(self.window_bytes, SKIP_BYTES)
        if -max(BACK_BYTES, reach) <= gap <= max(NEAR_BYTES, reach):
            return abs(gap)
        return None

    def read(self, offset: int, demand: int) -> None:
        """A read that continues the stream."""
        gap = offset - self.expected
        if demand <= self.expected:
            return  # late: what is beyond it was requested before
        if gap > KEEP_BYTES:
            self.window_bytes //= 2
        elif gap <= NEAR_BYTES:
            self.streak += 1
            if self.streak >= STREAK:
                doubled = max(2 * self.window_bytes, FIRST_WINDOW_BYTES)
                self.window_bytes = min(doubled, MOST_WINDOW_BYTES)
        self.expected = demand

    def plan(self, offset: int, demand: int, most_bytes: int) -> int:
        window = min(self.window_bytes, most_bytes)
        if window < FIRST_WINDOW_BYTES:
            self.ahead = demand
        elif self.ahead - offset <= window // 2:
            self.ahead = max(demand, offset + window)
        return max(demand, self.ahead)


class ReadAhead:
    """The pattern of one handle. The caller calls `plan` once per request of the reader that was
    not granted before, and `granted` with the end of each answer."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: list[_Stream] = []  # in the order of their last reads

    @property
    def sequential(self) -> bool:
        """True if the window of the last reader is open."""
        return bool(self._streams) and self._streams[-1].window_bytes > 0

    def plan(self, offset: int, size_bytes: int, most_bytes: int = MOST_WINDOW_BYTES) -> int:
        """The offset up to which to fetch now, at least `offset + size_bytes`. `most_bytes` caps
        the window (pressure): below the first window nothing is fetched ahead."""
        demand = offset + size_bytes
        stream = self._find(offset)
        if stream is None:
            stream = _Stream(offset, demand)
            del self._streams[: max(0, len(self._streams) + 1 - STREAMS)]
        else:
            self._streams.remove(stream)
            stream.read(offset, demand)
        self._streams.append(stream)
        return stream.plan(offset, demand, most_bytes)

    def granted(self, offset: int, end: int) -> None:
        """Notes that the reader at `offset` may read up to `end` without another request."""
        for stream in reversed(self._streams):
            if offset < stream.expected <= end:
                stream.expected = end
                return

    def _find(self, offset: int) -> _Stream | None:
        """Returns the stream whose next offset is nearest to `offset`."""
        found, nearest = None, 0
        for stream in self._streams:
            distance = stream.distance(offset)
            if distance is not None and (found is None or distance <= nearest):
                found, nearest = stream, distance
        return found
