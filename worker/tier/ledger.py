"""What the tier's bytes are: the ledger that keeps the cache below its limit. Pure.

All figures are bytes really allocated (`st_blocks`), or promised to a fill in flight:

    cached      files with an index record, and live ones about to get it
    reserved    promised to fills in flight, not yet allocated
    unlinked    unlinked but still open or mapped by a program
    scratch     segments, and dropped segments that a program still has open
    overhead    the index and the tier's directories

Their sum stays at or below `limit_bytes`: room is promised before it is used. The index grows with
what is filled and is measured now and then: `headroom_bytes` are not promised. A part of the
limit (`scratch_floor_bytes`) is kept from cached files, so that what the cache refuses can always
be read. Files that take it all the same (`reserve`) are evicted once segments need it. A limit that
is lower than what an earlier process cached is exceeded until enough was evicted, and by the floor
at most beyond that.
"""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20
BLOCK_BYTES: Final = 4096  # what a file system allocates at least


def scratch_limit(limit_bytes: int) -> int:
    """The most that segments may take."""
    return min(limit_bytes // 2, max(64 * MIB, min(512 * MIB, limit_bytes // 8)))


def scratch_floor(limit_bytes: int) -> int:
    """The part of the limit that is reserved for segments."""
    return min(limit_bytes // 4, max(16 * MIB, min(256 * MIB, limit_bytes // 16)))


def allocation(size_bytes: int) -> int:
    """Returns the bytes that `size_bytes` of data take on disk."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Ledger:
    """The sums. The code that allocates or frees adds to them."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        cached_bytes: int = 0,
        scratch_limit_bytes: int | None = None,
        scratch_floor_bytes: int | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.scratch_limit_bytes = (
            scratch_limit(limit_bytes) if scratch_limit_bytes is None else scratch_limit_bytes
        )
        self.scratch_floor_bytes = (
            scratch_floor(limit_bytes) if scratch_floor_bytes is None else scratch_floor_bytes
        )
        self.headroom_bytes = min(MIB, limit_bytes // 64)
        self.cached_bytes = cached_bytes
        self.reserved_bytes = 0
        self.unlinked_bytes = 0
        self.scratch_bytes = 0
        self.overhead_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self.cached_bytes + self.unlinked_bytes + self.scratch_bytes + self.overhead_bytes

    @property
    def _free_bytes(self) -> int:
        return self.limit_bytes - self.headroom_bytes - self.used_bytes - self.reserved_bytes

    @property
    def free_for_files(self) -> int:
        kept_bytes = self.scratch_floor_bytes - self.scratch_bytes
        return self._free_bytes - kept_bytes if kept_bytes > 0 else self._free_bytes

    @property
    def free_for_scratch(self) -> int:
        free_bytes = self._free_bytes
        if self._files_exceed_limit:
            free_bytes = max(free_bytes, self.scratch_floor_bytes - self.scratch_bytes)
        return min(free_bytes, self.scratch_limit_bytes - self.scratch_bytes)

    @property
    def _files_exceed_limit(self) -> bool:
        """True if the limit was lowered below the cached files."""
        return self.cached_bytes + self.overhead_bytes > self.limit_bytes

    @property
    def lent_floor_bytes(self) -> int:
        """The part of the room for segments that files take."""
        return max(0, -self.free_for_files)

    @property
    def over_limit_bytes(self) -> int:
        """The bytes in use above the limit."""
        return max(0, self.used_bytes - self.limit_bytes)

    def reserve(self, size_bytes: int, *, from_floor: bool = False) -> bool:
        """Promises room for a fill; False (and nothing changed) when there is none. `from_floor`:
        unused room for segments, too."""
        if size_bytes > (self._free_bytes if from_floor else self.free_for_files):
            return False
        self.reserved_bytes += size_bytes
        return True

    def take_scratch(self, size_bytes: int) -> bool:
        """Room for a segment; False (and nothing changed) when there is none."""
        if size_bytes > self.free_for_scratch:
            return False
        self.scratch_bytes += size_bytes
        return True

    def check_invariants(self) -> None:
        for name in ("cached", "reserved", "unlinked", "scratch", "overhead"):
            value = getattr(self, f"{name}_bytes")
            assert value >= 0, f"{name}: {value}"
        assert self.scratch_bytes <= self.scratch_limit_bytes
