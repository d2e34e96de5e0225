"""The clocks of a worker, which tests replace."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cachefs.core.lasting_clock import lasting_s


@dataclass(frozen=True, slots=True)
class Clocks:
    """`monotonic`, `lasting` (see there) and `wall` in seconds; `jitter` uniform in [0, 1)."""

    monotonic: Callable[[], float] = time.monotonic
    lasting: Callable[[], float] = lasting_s
    wall: Callable[[], float] = time.time
    jitter: Callable[[], float] = field(default=random.random)
