"""The rule by which bytes enter the cache. Pure.

`always`: they enter, and others are evicted for them. `fill`: they enter while there is room. A
full cache refuses, except that data unused for `idle_after_s` is evicted for them. A job that reads
a permutation of N samples per epoch can never hit more than C/N with a cache of C samples. Filling
and then refusing reaches that bound; every replacement order stays below it. What a node owns takes
the room of its copies of what other nodes own, so a data set has the room of all nodes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable


class Verdict(enum.Enum):
    ADMIT = "there is room"
    MAKE_ROOM = "others must go first"
    MAKE_ROOM_FROM_COPIES = "copies of what other nodes own must go first"
    MAKE_ROOM_FROM_IDLE = "others that were idle for long must go first"
    REFUSE = "refused"


POLICIES = ("fill", "always")


def judge(
    policy: str,
    *,
    size_bytes: int,
    free_bytes: int,
    cached_bytes: int,
    oldest_use_s: int,
    idle_after_s: float,
    now_s: float,
    takes_copies: Callable[[], bool] = lambda: False,
) -> Verdict:
    """Decides one request. `oldest_use_s` is a lower bound of the last uses of all cached contents.
    `takes_copies`: the bytes are this node's own, and copies of other nodes' contents are cached.
    Refuses to make room at once where even all cached contents would not suffice."""
    if size_bytes <= free_bytes:
        return Verdict.ADMIT
    if size_bytes > free_bytes + cached_bytes:
        return Verdict.REFUSE
    if policy == "always":
        return Verdict.MAKE_ROOM
    if takes_copies():
        return Verdict.MAKE_ROOM_FROM_COPIES
    if oldest_use_s + idle_after_s <= now_s:
        return Verdict.MAKE_ROOM_FROM_IDLE
    return Verdict.REFUSE
