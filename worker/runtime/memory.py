"""The memory budget of a worker: what it holds, what more it may take. Pure.

    process    the interpreter, libraries, stacks: an estimate
    metadata   eviction order, live files, handles: an estimate by count
    buffers    bodies on their way for somebody who waits
    windows    bodies on their way ahead of readers
    segments   what is read past the tier into memory, while its disk fails or hangs, or while the
               scratch area is full
    tiers      bytes of tiers that are memory themselves (tmpfs), promised ones included

Whoever holds memory tells by plain additions. What somebody waits for is never refused, only cut
into smaller pieces: windows and background pieces shrink first, from the moment on that less than
`reserve_bytes` would stay free, down to nothing. A tier in memory is clipped at the start, so that
it can never take the rest.
"""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20
DEFAULT_SHARE: Final = 0.8  # of the memory that this process may have at most
LEAST_BYTES: Final = 128 * MIB
PROCESS_BYTES: Final = 96 * MIB
KNOWN_BYTES: Final = 250  # of a cached file that nobody has open: eviction order, last use
LIVE_BYTES: Final = 6_000  # of one that is open, or on its way
BUFFER_BYTES: Final = 2 * MIB  # of one body on its way, wherever its bytes go
SEGMENT_SHARE: Final = 4  # segments take at most one part in so many
COPIED_SHARE: Final = 4  # one part in so many of that is for segments that are never lent


def budget(asked_bytes: int, available_bytes: int) -> int:
    """The limit: what was asked for, at most all there is; a share of that for 0."""
    if not asked_bytes:
        return max(LEAST_BYTES, int(available_bytes * DEFAULT_SHARE))
    return max(LEAST_BYTES, min(asked_bytes, available_bytes))


def buffer_bytes(piece_bytes: int) -> int:
    """What a piece of that size holds while it is on its way."""
    return min(piece_bytes, BUFFER_BYTES)


class MemoryBudget:
    """The sums, and what may be taken still."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.metadata_bytes = 0
        self.buffers_bytes = 0
        self.windows_bytes = 0
        self.segments_bytes = 0
        self.tiers_bytes = 0
        self._promised_bytes = 0  # to tiers that are memory

    @property
    def reserve_bytes(self) -> int:
        """Kept from what nobody waits for."""
        return min(64 * MIB, self.limit_bytes // 8)

    @property
    def used_bytes(self) -> int:
        caches = self.metadata_bytes + self.segments_bytes + self.tiers_bytes
        return PROCESS_BYTES + caches + self.buffers_bytes + self.windows_bytes

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    def parts(self) -> dict[str, int]:
        """What is counted, by name; without `process`, which is fixed."""
        names = ("metadata", "buffers", "windows", "segments", "tiers")
        return {f"{name}_bytes": getattr(self, f"{name}_bytes") for name in names}

    # ---- tiers ----

    def clip_tier(self, size_bytes: int) -> int:
        """How large a tier in memory may be."""
        rest = PROCESS_BYTES + 2 * self.reserve_bytes + self._promised_bytes
        return max(16 * MIB, min(size_bytes, self.limit_bytes - rest))

    def take_tier(self, size_bytes: int) -> int:
        """The same, promised to a tier from now on."""
        taken = self.clip_tier(size_bytes)
        self._promised_bytes += taken
        return taken

    def return_tier(self, size_bytes: int) -> None:
        """That tier is no more."""
        self._promised_bytes -= size_bytes

    # ---- pressure ----

    @property
    def spare_bytes(self) -> int:
        """What read-ahead may take now."""
        return max(0, self.free_bytes - self.reserve_bytes)

    @property
    def under_pressure(self) -> bool:
        """Is there no more room for a piece that nobody waits for?"""
        return self.spare_bytes < BUFFER_BYTES

    def window(self, most_bytes: int, readers: int) -> int:
        """How far ahead each of so many readers may be fetched for: up to `most_bytes`, less when
        memory is short, 0 under pressure. Monotonic in what is free."""
        return min(most_bytes, self.spare_bytes // max(1, readers))

    def piece(self, most_bytes: int, least_bytes: int) -> int:
        """How large one piece may be: pieces are cut when memory is short."""
        return max(least_bytes, min(most_bytes, self.spare_bytes // 4))

    # ---- segments ----

    @property
    def segments_limit_bytes(self) -> int:
        """How much segments in memory may take: one part of the limit, less when the rest is
        taken, never less than a few pages (reads past a disk that hangs must go on)."""
        room = self.segments_bytes + self.free_bytes
        return max(16 * MIB, min(self.limit_bytes // SEGMENT_SHARE, room))

    def free_for_segments(self, *, lent: bool) -> int:
        """Returns what segments may take now. Those that are `lent` to clients leave a part to
        those whose bytes are copied: these come back however long clients keep what they have."""
        limit_bytes = self.segments_limit_bytes
        if lent:
            limit_bytes -= limit_bytes // COPIED_SHARE
        return limit_bytes - self.segments_bytes

    def take_segment(self, size_bytes: int, *, lent: bool = True) -> bool:
        """Room for a segment; False (and nothing changed) when there is none."""
        if size_bytes > self.free_for_segments(lent=lent):
            return False
        self.segments_bytes += size_bytes
        return True

    def check_invariants(self) -> None:
        for name, value in self.parts().items():
            assert value >= 0, f"{name}: {value}"
