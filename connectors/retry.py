"""Retries of requests to an origin: exponential backoff with full jitter, and a deadline for the
whole call. Only `retryable` errors are retried, and only here. The caller's deadline
(`connectors.deadline`) ends the retries too.

A body is retried up to its first bytes. If it fails later it raises BadBody or Unreachable, and the
caller requests the pages it lacks. `read_all` is retried as a whole.

A write that failed with a retryable error may have happened. If a repeated write then meets a file
that it did not expect, the file may be its own:
- `put`: if the file has the bytes of the call, the call succeeded. Another writer of the same bytes
  is not distinguished: a lock file needs a content that no other has.
- `delete`: if the file is absent, the call succeeded.
- `finish`: the adapter recognises its own upload.
- `copy`, `mkdir`: the error means that an earlier attempt of the call may have done it.
- `rename` is never repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import SystemRandom
from typing import Final, NoReturn, TypeVar

from cachefs.core.errors import AlreadyExists, CacheFSError, NotFound, Stale
from cachefs.core.model import Fingerprint
from connectors.base import Body, Connector
from connectors.deadline import is_futile, until
from connectors.decorator import Decorator
from connectors.writing import WRITES, Expectation, writer_of

T = TypeVar("T")
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
CHECK_DEADLINE_S: Final = 5.0  # of `check`, for which an operator waits at a terminal


def pause_s(attempt: int, jitter: float) -> float:
    """Returns the backoff after the failure of attempt 0, 1, …; `jitter` is uniform in [0, 1)."""
    return jitter * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(attempt, 16)))


class Retry(Decorator):
    """A connector that retries each request until `deadline_s` after its first attempt, then raises
    the last error. The deadline does not interrupt an attempt; the adapter's timeouts bound it."""

    def __init__(
        self,
        inner: Connector,
        *,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: Callable[[], float] | None = None,
    ) -> None:
        """`clock` is monotonic, in seconds; `rng` is uniform in [0, 1)."""
        super().__init__(inner)
        self._deadline_s = deadline_s
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or SystemRandom().random

    def _around(self, verb: str, act: Callable[[], T]) -> T:
        if verb == "rename":
            return act()
        return self._repeat(verb, act, _unknown)

    def put(self, path: bytes, data: memoryview, expect: Expectation) -> Fingerprint:
        inner = writer_of(self._inner)

        def own(error: CacheFSError) -> Fingerprint:
            found = _version_at(self._inner, path)
            if found is None or found.size != len(data):
                raise _doubted(error) from error
            if self._inner.read_all(path, found) != data:
                raise _doubted(error) from error
            return found

        return self._repeat("put", lambda: inner.put(path, data, expect), own)

    def delete(self, path: bytes, expect: Expectation) -> None:
        inner = writer_of(self._inner)

        def own(error: CacheFSError) -> None:
            if not isinstance(error, NotFound):
                raise _doubted(error) from error

        self._repeat("delete", lambda: inner.delete(path, expect), own)

    def _repeat(self, verb: str, act: Callable[[], T], own: Callable[[CacheFSError], T]) -> T:
        """Returns the result of the first attempt that succeeds. If a repeated write meets what it
        did not expect, `own(error)` returns the result of an earlier attempt, or raises."""
        patience_s = self._deadline_s
        if verb == "check":
            patience_s = min(patience_s, CHECK_DEADLINE_S)
        ends = min(self._clock() + patience_s, until())
        attempt = 0
        while True:
            try:
                return act()
            except (AlreadyExists, NotFound, Stale) as error:
                if not attempt or verb not in WRITES:
                    raise
                return own(error)
            except CacheFSError as error:
                wait_s = pause_s(attempt, self._rng())
                if not error.retryable or self._clock() + wait_s >= ends or is_futile():
                    raise
            self._sleep(wait_s)
            attempt += 1

    def _body(self, open_body: Callable[[], Body]) -> Body:
        return self._around("read", lambda: StartedBody(open_body()))


def _version_at(connector: Connector, path: bytes) -> Fingerprint | None:
    """Returns the version of a file, or None if there is none."""
    try:
        return connector.stat(path).fingerprint
    except NotFound:
        return None


def _doubted(error: CacheFSError) -> CacheFSError:
    """Returns the error of a write whose earlier attempts may have happened."""
    cause = f"{error.cause} (an earlier attempt of this call may have done it)"
    return type(error)(cause, remedy=error.remedy, path=error.path, request_id=error.request_id)


def _unknown(error: CacheFSError) -> NoReturn:
    raise _doubted(error) from error


class StartedBody:
    """A body whose first chunk is received. The constructor raises the errors of that chunk."""

    def __init__(self, inner: Body) -> None:
        self._inner = inner
        self._chunks = iter(inner)
        try:
            self._first = next(self._chunks, None)
        except BaseException:
            inner.close()
            raise

    def __iter__(self) -> Iterator[memoryview]:
        first, self._first = self._first, None
        if first is not None:
            yield first
            del first
            yield from self._chunks

    def close(self) -> None:
        self._inner.close()
