"""Descriptors and locks that have an owner from their call on, for code that signals interrupt.

CPython runs signal handlers between bytecodes: also when a function in C has returned, and before
its result is assigned. If the handler raises there, a descriptor that is only a number stays open,
and a lock stays locked. So functions in C pass the result to its owner here, and no bytecode runs
in between.
"""

from __future__ import annotations

import itertools
import select
import threading
from collections.abc import Callable
from typing import Final

OwnedFd = select.epoll
"""Owns any descriptor: `fileno`, `close`, and `with`, which closes. Its last reference closes, too.
All of this is in C. Of the types that do so, this one neither checks what the descriptor is, nor
warns of one that was not closed."""

_AT_ONCE: Final = (False,)

own: Final[Callable[[int], OwnedFd]] = OwnedFd.fromfd


def opened(function: Callable[..., int], *arguments: object) -> OwnedFd:
    """Returns what a function in C opens, such as `os.open`. Raises as it does."""
    return next(map(own, itertools.starmap(function, (arguments,))))


def take_fd(fds: list[int]) -> OwnedFd:
    """Removes the last descriptor from a list that its holder closes. Returns its new owner."""
    return next(map(own, iter(fds.pop, None)))


def try_lock(held: list[bool], lock: threading.Lock) -> None:
    """Appends whether this thread got a lock, without a wait: its `finally` unlocks if so."""
    held.extend(map(lock.acquire, _AT_ONCE))
