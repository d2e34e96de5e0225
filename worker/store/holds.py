"""How long what was loaded is held: not evicted before it was read, or before a time. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from cachefs.core.jobs import HOLD_S

LEAST_S: Final = 1  # the smallest deadline


class Hold(NamedTuple):
    """`until_s`: wall clock. `though_read`: a read does not end it."""

    until_s: float
    though_read: bool = False

    def deadline_s(self, wall_s: float, monotonic_s: float) -> int:
        """When it ends by the other clock, 0: it has ended. One that a read ends lasts HOLD_S at
        most, whatever the wall clock says."""
        left_s = self.until_s - wall_s
        if not self.though_read:
            left_s = min(left_s, HOLD_S)
        return max(LEAST_S, math.floor(monotonic_s + left_s)) if left_s > 0 else 0

    @property
    def recorded_s(self) -> int:
        """As records say it."""
        return math.ceil(self.until_s)
