"""The first inode number that a store assigns after a start. Pure.

A store can be restored to an earlier state, from a backup or a machine snapshot. Clients and caches
still use numbers that were assigned after that state, and the store does not know them. So each
start skips numbers: the first one is derived from the start time, 32,768 numbers per second, and is
at least 2^20 above the last known number. Two starts from one state begin at different numbers
unless the clock moves backwards. If it does, the nonce of a content still differs.
"""

from __future__ import annotations

from typing import Final

from cachefs.core.model import MAX_INO

SKIPPED: Final = 1 << 20
NUMBERS_PER_S: Final = 1 << 15
LAST_SECOND: Final = 1 << 32  # a clock beyond that (the year 2106) is wrong and is ignored


def skipped(next_ino: int) -> int:
    """Returns the next number after a skip; unchanged where too few numbers are left."""
    return next_ino + SKIPPED if next_ino + SKIPPED <= MAX_INO else next_ino


def first_of_start(next_ino: int, now_s: float) -> int:
    """Returns the first number that a store started at wall time `now_s` assigns."""
    by_time = int(now_s * NUMBERS_PER_S) if 0 <= now_s < LAST_SECOND else 0
    return max(skipped(next_ino), by_time)
