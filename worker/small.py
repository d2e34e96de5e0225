"""Whole small files from the origin, without a thread for each (`connectors.streams`). Owned by the
loop.

A source whose files can be read so is known from the first file of it that a thread has brought,
and for a minute. Where one that was asked for does not come, it and those after it are left to the
threads, until one of them has succeeded; twice as many each time that nothing has come in between:
an origin that always answers otherwise than this way understands is not to be asked for each file
twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import NamespaceId, Origin
from connectors.base import Ask
from connectors.streams import Streams
from worker.source import Asker, Source, SourceBody, WholeBody
from worker.threads import Done, Threads, Wake

MOST_SOURCES: Final = 1000
MOST_WAIT: Final = 256
KEPT_S: Final = 60.0  # what was learned of a source: names and credentials change
MOST_UNWRITTEN_BYTES: Final = 64 << 20  # came, and wait for the disk

Store = Callable[[SourceBody], None]


class _Way:
    """To one source. `asker` None: by threads, until `wait` more of their reads have succeeded.
    `failures`: in a row."""

    __slots__ = ("asker", "failures", "until_s", "wait")

    def __init__(self) -> None:
        self.asker: Asker | None = None
        self.until_s = 0.0
        self.failures = 0
        self.wait = 1

    def fail(self) -> None:
        self.asker = None
        self.wait = min(MOST_WAIT, 1 << self.failures)
        if self.wait < MOST_WAIT:
            self.failures += 1

    def valid(self, now: float) -> Asker | None:
        if self.asker is not None and now > self.until_s:
            self.asker, self.wait = None, 1
        return self.asker


@dataclass(eq=False, slots=True)
class _Read:
    """One file. `ask` and `taken` are called by the thread of the streams."""

    reads: SmallReads
    way: _Way
    asker: Asker
    origin: Origin
    store: Store
    done: Done
    otherwise: Done

    def ask(self) -> Ask | None:
        """None also where another one has not come since this one was started."""
        return self.asker(self.origin) if self.way.asker is self.asker else None

    def taken(self, body: memoryview | None) -> None:
        self.reads.taken(self, body)


class SmallReads:
    """`threads` look at sources. `writers`: threads that write what came, where writing may block;
    None: the thread that receives does it."""

    def __init__(
        self,
        source: Source,
        wake: Wake,
        threads: Threads,
        writers: Threads | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._wake = wake
        self._threads = threads
        self._writers = writers
        self._clock = clock
        self._streams = Streams("fetch-small")
        self._ways: dict[tuple[NamespaceId, str], _Way] = {}
        self._unwritten_bytes = 0

    def start(self, origin: Origin, store: Store, done: Done, otherwise: Done) -> bool:
        """Brings all of a file. When it is there `store(body)` is called in a thread, which raises
        what it likes, and then `done(None, error)` in the loop. Where it does not come, `otherwise`
        is called in the loop in place of both. False: not in this way, and nothing is called."""
        way = self._ways.get(_key(origin))
        if way is None or self._unwritten_bytes > MOST_UNWRITTEN_BYTES:
            return False
        asker = way.valid(self._clock())
        if asker is None:
            return False
        read = _Read(self, way, asker, origin, store, done, otherwise)
        return self._streams.start(read.ask, read.taken)

    @property
    def serves(self) -> bool:
        """Is there a source whose files come so now?"""
        return any(way.asker is not None for way in self._ways.values())

    def learn(self, origin: Origin) -> None:
        """An ordinary read of a small file from the origin has succeeded."""
        way = self._ways.get(_key(origin))
        if way is None:
            if len(self._ways) >= MOST_SOURCES:
                self._ways.clear()
            way = self._ways[_key(origin)] = _Way()
        if way.valid(self._clock()) is not None:
            return
        way.wait -= 1
        if way.wait == 0:  # below it one is just looking
            self._threads.submit(
                self._look, origin, done=lambda asker, _: self._learned(way, asker)
            )

    def _look(self, origin: Origin) -> Asker | None:
        """In a thread."""
        try:
            return self._source.asker(origin)
        except CacheFSError:
            return None

    def _learned(self, way: _Way, asker: Asker | None) -> None:
        if asker is None:
            way.fail()
        else:
            way.asker, way.until_s = asker, self._clock() + KEPT_S

    def close(self, wait_s: float) -> bool:
        """For another thread than the loop's: blocks. What is under way is left to `otherwise`.
        False when some write is still under way after `wait_s`."""
        return self._streams.close(wait_s)

    # ---- in the thread of the streams ----

    def taken(self, read: _Read, body: memoryview | None) -> None:
        """What a read came to."""
        if body is None:
            is_first = read.way.asker is read.asker  # many fail at once: that is one failure
            if is_first:
                read.way.asker = None  # now: those that wait here are not sent
            self._wake.call(self._not_come, read, is_first)
        elif self._writers is not None:
            self._wake.call(self._write, self._writers, read, bytes(body))
        else:
            self._wake.call(self._stored, read, _error_of(read.store, WholeBody(body, len(body))))

    # ---- in the loop ----

    def _not_come(self, read: _Read, is_first: bool) -> None:
        if is_first:
            read.way.fail()
        read.otherwise(None, None)

    def _stored(self, read: _Read, error: BaseException | None) -> None:
        read.way.failures = 0
        read.done(None, error)

    def _write(self, writers: Threads, read: _Read, data: bytes) -> None:
        self._unwritten_bytes += len(data)

        def written(_: Any, error: BaseException | None) -> None:
            self._unwritten_bytes -= len(data)
            self._stored(read, error)

        writers.submit(read.store, WholeBody(memoryview(data), len(data)), done=written)


def _key(origin: Origin) -> tuple[NamespaceId, str]:
    return origin.content.namespace, origin.ufs


def _error_of(store: Store, body: SourceBody) -> BaseException | None:
    try:
        store(body)
    except BaseException as err:  # noqa: BLE001 -- handed to whoever waits for the result
        return err
    return None
