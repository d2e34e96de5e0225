"""Which inode numbers a start of a store gives. Pure.

A store can be an earlier state of itself: a restored backup, a snapshot of a machine. The numbers
that were given after that state was taken are in use at clients and in caches, and the store does
not know them. So each start leaves numbers out: it begins at the time of the start, with room for
32,768 numbers a second, and at least 2^20 above the last number that the store knows. Two starts of
one state begin at different numbers, wherever the clock does not go backwards. Where it does, the
nonce of a content still tells the two apart.
"""

from __future__ import annotations

from typing import Final

from cachefs.core.model import MAX_INO

SKIPPED: Final = 1 << 20
BITS_OF_A_SECOND: Final = 15
LAST_SECOND: Final = 1 << 32  # a clock beyond that (the year 2106) is wrong, and not followed


def skipped(next_ino: int) -> int:
    """The next number after a jump; the same where too few are left to leave any out."""
    return next_ino + SKIPPED if next_ino + SKIPPED <= MAX_INO else next_ino


def first_of_start(next_ino: int, now_s: float) -> int:
    """The first number that a start at wall time `now_s` gives."""
    by_time = int(now_s) << BITS_OF_A_SECOND if 0 <= now_s < LAST_SECOND else 0
    return max(skipped(next_ino), by_time)
