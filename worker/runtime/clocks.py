"""The clocks of a worker, which tests replace."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Clocks:
    """`monotonic` and `wall` in seconds; `jitter` uniform in [0, 1)."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    jitter: Callable[[], float] = field(default=random.random)
