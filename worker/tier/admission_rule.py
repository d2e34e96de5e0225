"""May these bytes enter the cache? Pure.

`always`: they may, others go for them. `fill`: they may while there is room; a full cache refuses,
except that data which nobody used for `idle_after_s` goes for them. A job that reads a permutation
of N samples per epoch can never hit more than C/N with a cache of C samples; filling and then
refusing reaches that bound, every order of replacement stays below it. What a node owns among
others takes the room of its copies of what others own: so a data set has the room of all nodes.
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
    """`oldest_use_s` is a lower bound of the last uses of everything cached. `takes_copies`: is it
    this node's own, and are there copies of others'? Making room is refused at once where even all
    that is cached would not be enough."""
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
