"""A token, or keys, that end: kept until then, and fetched again before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from cachefs.core.errors import CacheFSError
from connectors.deadline import acquire_in_time

T = TypeVar("T")
EARLY_S: Final = 300.0  # before the end of a token
AGAIN_S: Final = 10.0  # between attempts to renew a token that has not ended yet


class _Kept(NamedTuple, Generic[T]):
    secret: str
    token: T
    until_s: float


class KeptToken(Generic[T]):
    """The token of one credential. Thread-safe. One thread at a time fetches the next one, minutes
    before the end of the last one, which others use until then. It also stays in use while none can
    be fetched, as during a restart of the server that gives it."""

    def __init__(self, what: str, clock: Callable[[], float] = time.time) -> None:
        """`what`: as in messages. `clock`: of the times at which tokens end."""
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: _Kept[T] | None = None
        self._again_at_s = 0.0

    def current(self, secret: str, fetch: Callable[[], tuple[T, float]]) -> T:
        """Returns a token that was made of `secret` and has not ended. `fetch` returns a new one,
        and when it ends. Raises its errors, and Unreachable while another thread fetches."""
        if not self._lock.acquire(blocking=False):
            kept = self._kept
            if kept is not None and self._is_valid(kept, secret):
                return kept.token
            acquire_in_time(self._lock, self._what)
        try:
            return self._renewed(secret, fetch)
        finally:
            self._lock.release()

    def _renewed(self, secret: str, fetch: Callable[[], tuple[T, float]]) -> T:
        kept, now_s = self._kept, self._clock()
        if kept is None or not self._is_valid(kept, secret):
            return self._fetched(secret, fetch)
        if now_s < max(kept.until_s - EARLY_S, self._again_at_s):
            return kept.token
        self._again_at_s = now_s + AGAIN_S
        try:
            return self._fetched(secret, fetch)
        except (CacheFSError, OSError):
            return kept.token

    def _fetched(self, secret: str, fetch: Callable[[], tuple[T, float]]) -> T:
        self._kept = kept = _Kept(secret, *fetch())
        return kept.token

    def _is_valid(self, kept: _Kept[T], secret: str) -> bool:
        return kept.secret == secret and self._clock() < kept.until_s

    def forget(self) -> None:
        """Discards the token, after the store refused it. Does not wait for a thread that fetches
        one."""
        self._kept = None
