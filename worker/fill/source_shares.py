"""The share of each source in the threads of one kind: requests to a source that does not answer
must not hold all of them, or reads of other sources would wait. Owned by the loop.

The callers bound the queues (fills in flight).
"""

from __future__ import annotations

import asyncio
import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from cachefs.core.model import NamespaceId
from worker.runtime.threads import BackgroundCalls, Done, Threads, keep, settle

T = TypeVar("T")
Source = tuple[NamespaceId, str]


class _Call(NamedTuple):
    threads: Threads | BackgroundCalls  # that run it, in its turn
    function: Callable[..., Any]
    args: tuple[Any, ...]
    done: Done


class SourceShares:
    """Calls of one source take at most `Threads.share` of the threads at once; the others wait
    here. `behind`: a background call."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self._running: collections.Counter[Source] = collections.Counter()
        self._later: dict[Source, collections.deque[_Call]] = {}

    def has_room(self, source: Source) -> bool:
        """Returns whether a call would start at once."""
        return self.threads.has_room and self._running[source] < self.threads.share

    def run(
        self, source: Source, function: Callable[..., T], *args: Any, behind: bool
    ) -> asyncio.Future[T]:
        """Runs a call, as `Threads.run` does."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        done = functools.partial(settle, future, keep)
        self.submit(source, function, *args, done=done, behind=behind)
        return future

    def submit(
        self, source: Source, function: Callable[..., Any], *args: Any, done: Done, behind: bool
    ) -> None:
        """Runs a call, as `Threads.submit` does."""
        threads = self.threads.behind if behind else self.threads
        later = self._later.setdefault(source, collections.deque())
        later.append(_Call(threads, function, args, done))
        self._begin_some(source)

    def count_out(self, stuck: int, *, cause: str) -> None:
        """See `Threads`."""
        self.threads.count_out(stuck, cause=cause)
        for source in [*self._later]:
            self._begin_some(source)

    def _begin_some(self, source: Source) -> None:
        later = self._later[source]
        while later and self._running[source] < self.threads.share:
            call = later.popleft()
            self._running[source] += 1
            done = functools.partial(self._ended, source, call.done)
            call.threads.submit(call.function, *call.args, done=done)
        if not later:
            del self._later[source]

    def _ended(self, source: Source, done: Done, result: Any, error: BaseException | None) -> None:
        self._running[source] -= 1
        if not self._running[source]:
            del self._running[source]
        if source in self._later:
            self._begin_some(source)
        done(result, error)
