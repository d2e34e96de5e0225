"""The calls of the library: a thread makes one at a time.

A signal handler may run in the middle of a call, and so may a finaliser. A call that it makes would
wait for the lock, or the reply, that the interrupted one has, which continues only after it. So it
raises. Nothing that the library calls inside of a call is code of the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from cachefs.core.errors import NestedCall
from cachefs.core.owned_fd import try_lock

_R = TypeVar("_R")


class _ThisThread(threading.local):
    """`call` is locked while this thread is in a call."""

    def __init__(self) -> None:
        super().__init__()
        self.call = threading.Lock()


_this_thread = _ThisThread()


def call(function: Callable[..., _R], *arguments: Any) -> _R:
    """Returns what a function returns, which is a call of the library. Raises NestedCall if this
    thread is in one already, and what the function raises."""
    lock = _this_thread.call
    held: list[bool] = []  # `list[bool]()` takes longer than all of this
    try:
        try_lock(held, lock)
        if not held[0]:
            raise NestedCall(
                "a signal handler or a finaliser calls the library while its thread is in a call",
                remedy="note the signal in the handler, and read when the program goes on",
            )
        return function(*arguments)
    finally:
        if True in held:
            lock.release()


def own_work(function: Callable[[], None]) -> None:
    """Runs what takes locks of the library, in a call of this thread or outside of one."""
    lock = _this_thread.call
    held: list[bool] = []
    try:
        try_lock(held, lock)
        function()
    finally:
        if True in held:
            lock.release()


def abandon() -> None:
    """Ends the call in which this thread is, after a fork by a signal handler: the child may never
    return to it."""
    _this_thread.call = threading.Lock()
