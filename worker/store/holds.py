"""The protection of loaded files from eviction, until a time or until they are read. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from cachefs.core.jobs import HOLD_S

LEAST_S: Final = 1  # the smallest deadline


class Hold(NamedTuple):
    """A hold until `until_s` (wall clock). A read ends it, unless `though_read`."""

    until_s: float
    though_read: bool = False

    def deadline_s(self, wall_s: float, monotonic_s: float) -> int:
        """Returns the end by the monotonic clock; 0: it has ended. A hold that a read ends lasts at
        most HOLD_S, even if the wall clock is changed."""
        left_s = self.until_s - wall_s
        if not self.though_read:
            left_s = min(left_s, HOLD_S)
        return max(LEAST_S, math.floor(monotonic_s + left_s)) if left_s > 0 else 0

    @property
    def recorded_s(self) -> int:
        """The end in whole seconds, as in `FileRecord.held_until_s`."""
        return math.ceil(self.until_s)
