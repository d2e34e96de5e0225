"""The memory budget of a worker: the memory in use by kind, and the limits of each kind. Pure.

    process    the interpreter, libraries, stacks: an estimate
    metadata   eviction order, live files, handles: an estimate by count; and the parts of indexes
               that are locked in memory
    buffers    bodies in flight for waiting readers
    windows    bodies in flight for prefetches
    segments   data that bypasses the tier in memory, while its disk fails or hangs, or while the
               scratch area is full
    tiers      bytes of tiers in memory (tmpfs), reserved ones included

The owners of memory add to these counters. Requests of waiting readers are never refused, only cut
into smaller pieces. Windows and background pieces shrink as soon as less than `reserve_bytes` would
stay free, down to nothing. A tier in memory is clipped at the start, so that memory for the other
kinds remains.
"""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20
DEFAULT_SHARE: Final = 0.8  # of the memory limit of this process
LEAST_BYTES: Final = 128 * MIB
PROCESS_BYTES: Final = 96 * MIB
KNOWN_BYTES: Final = 250  # of a cached file that is not open: eviction order, last use
INDEX_SHARE: Final = 16  # an index takes at most 1/16 of the limit
MOST_INDEX_BYTES: Final = 1 << 30  # locked, of about four million files
LIVE_BYTES: Final = 6_000  # of a file that is open or being filled
BUFFER_BYTES: Final = 2 * MIB  # of a body in flight, for any destination
SEGMENT_SHARE: Final = 4  # segments take at most 1/4 of the limit
COPIED_SHARE: Final = 4  # 1/4 of that is reserved for segments that are never lent


def budget(requested_bytes: int, available_bytes: int) -> int:
    """Returns the limit: the requested bytes (0: a share of the available), at most all."""
    if not requested_bytes:
        return max(LEAST_BYTES, int(available_bytes * DEFAULT_SHARE))
    return max(LEAST_BYTES, min(requested_bytes, available_bytes))


def buffer_bytes(piece_bytes: int) -> int:
    """Returns the memory of a piece of that size in flight."""
    return min(piece_bytes, BUFFER_BYTES)


class MemoryBudget:
    """The memory in use, and the limits that follow from it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.metadata_bytes = 0
        self.buffers_bytes = 0
        self.windows_bytes = 0
        self.segments_bytes = 0
        self.tiers_bytes = 0
        self._promised_bytes = 0  # to tiers in memory

    @property
    def reserve_bytes(self) -> int:
        """The memory that prefetches must leave free."""
        return min(64 * MIB, self.limit_bytes // 8)

    @property
    def used_bytes(self) -> int:
        caches = self.metadata_bytes + self.segments_bytes + self.tiers_bytes
        return PROCESS_BYTES + caches + self.buffers_bytes + self.windows_bytes

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    def parts(self) -> dict[str, int]:
        """Returns the counted bytes by kind, without `process`, which is fixed."""
        names = ("metadata", "buffers", "windows", "segments", "tiers")
        return {f"{name}_bytes": getattr(self, f"{name}_bytes") for name in names}

    # ---- tiers ----

    def clip_tier(self, size_bytes: int) -> int:
        """Returns the size that a tier in memory may have, up to `size_bytes`."""
        rest = PROCESS_BYTES + 2 * self.reserve_bytes + self._promised_bytes
        return max(16 * MIB, min(size_bytes, self.limit_bytes - rest))

    def take_tier(self, size_bytes: int) -> int:
        """Reserves the memory of a tier and returns its size, as `clip_tier` does."""
        taken = self.clip_tier(size_bytes)
        self._promised_bytes += taken
        return taken

    def return_tier(self, size_bytes: int) -> None:
        """Returns the reserved memory of a closed tier."""
        self._promised_bytes -= size_bytes

    @property
    def index_limit_bytes(self) -> int:
        """The most that the index of a tier may keep in memory."""
        return min(MOST_INDEX_BYTES, self.limit_bytes // INDEX_SHARE)

    # ---- pressure ----

    @property
    def spare_bytes(self) -> int:
        """The memory that prefetches may take now."""
        return max(0, self.free_bytes - self.reserve_bytes)

    @property
    def under_pressure(self) -> bool:
        """True if a prefetch has no memory for another piece."""
        return self.spare_bytes < BUFFER_BYTES

    def window(self, most_bytes: int, readers: int) -> int:
        """Returns the read-ahead window of each of `readers`: up to `most_bytes`, less if memory is
        short, 0 under pressure. Monotonic in the free memory."""
        return min(most_bytes, self.spare_bytes // max(1, readers))

    def piece(self, most_bytes: int, least_bytes: int) -> int:
        """Returns the size of one piece, between the two bounds; smaller if memory is short."""
        return max(least_bytes, min(most_bytes, self.spare_bytes // 4))

    # ---- segments ----

    @property
    def segments_limit_bytes(self) -> int:
        """The most that segments in memory may take: a share of the limit, less if memory is short.
        It is never below 16 MiB, since reads that bypass a hung disk must proceed."""
        room = self.segments_bytes + self.free_bytes
        return max(16 * MIB, min(self.limit_bytes // SEGMENT_SHARE, room))

    def free_for_segments(self, *, lent: bool) -> int:
        """Returns the memory that segments may take now. Segments `lent` to clients must leave a
        share to those whose bytes are copied, since clients may keep lent ones for long."""
        limit_bytes = self.segments_limit_bytes
        if lent:
            limit_bytes -= limit_bytes // COPIED_SHARE
        return limit_bytes - self.segments_bytes

    def take_segment(self, size_bytes: int, *, lent: bool = True) -> bool:
        """Takes memory for a segment. Returns False, without a change, if there is not enough."""
        if size_bytes > self.free_for_segments(lent=lent):
            return False
        self.segments_bytes += size_bytes
        return True

    def check_invariants(self) -> None:
        for name, value in self.parts().items():
            assert value >= 0, f"{name}: {value}"
