"""Whole small files from the origin by one process for all of them (`worker.small.engine`): which
sources can be read so, and what becomes of what does not come. Owned by the loop.

A source whose files can be read so is known from the first file of it that a thread has brought,
and for a minute. Where one that was asked for does not come, it and those after it are left to the
threads, until one of them has succeeded; twice as many each time that nothing has come in between:
an origin that always answers otherwise than this way understands is not to be asked for each file
twice.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from cachefs.core.errors import CacheFSError, Interrupted
from cachefs.core.model import NamespaceId, Origin
from connectors.base import Ask
from connectors.streams import CONNECTIONS
from worker.small.engine import Engine, Spawn, spawn
from worker.small.wire import Got
from worker.source import Asker, Source
from worker.threads import Done, Threads

log = logging.getLogger(__name__)

MOST_SOURCES: Final = 1000
MOST_WAIT: Final = 256
KEPT_S: Final = 60.0  # what was learned of a source: names and credentials change
LOST: Final = Interrupted.code  # nobody can say what it came to

MakeFile = Callable[[], int]
Came = Callable[[Got], None]


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


@dataclass(frozen=True, slots=True)
class Small:
    """A file to be brought. `make_file` gives the descriptor to write to, which stays open until
    the end; it may block. It and `check` raise where that is not to be done any more. Then either
    `came`, which may raise, and `done(None, error)` are called, or `otherwise` is: all of it is
    left to a thread."""

    origin: Origin
    make_file: MakeFile
    check: Callable[[], None]
    came: Came
    done: Done
    otherwise: Done


class _Read:
    """One of them under way."""

    __slots__ = ("asker", "small", "way")

    def __init__(self, way: _Way, asker: Asker, small: Small) -> None:
        self.way = way
        self.asker = asker
        self.small = small


class SmallReads:
    """`threads` look at sources. `makers`: threads that make files, where that may block; None: the
    loop does it."""

    def __init__(
        self,
        source: Source,
        threads: Threads,
        makers: Threads | None,
        clock: Callable[[], float] = time.monotonic,
        spawn: Spawn = spawn,
    ) -> None:
        self._source = source
        self._threads = threads
        self._makers = makers
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._engine = Engine(self._on_end, spawn, clock)
        self._ways: dict[tuple[NamespaceId, str], _Way] = {}
        self._under_way = 0
        self._waiting: collections.deque[_Read] = collections.deque()

    def start(self, small: Small) -> bool:
        """Brings all of a file; how it ended is told after this has returned. False: not in this
        way, and nothing is called."""
        way = self._ways.get(_key(small.origin))
        if way is None or not self._engine.is_ready:
            return False
        asker = way.valid(self._clock())
        if asker is None:
            return False
        read = _Read(way, asker, small)
        if self._under_way < CONNECTIONS:
            self._begin(read)
        else:
            self._waiting.append(read)
        return True

    @property
    def serves(self) -> bool:
        """Is there a source whose files come so now?"""
        ways = self._ways.values()
        return self._engine.is_ready and any(way.asker is not None for way in ways)

    def learn(self, origin: Origin) -> None:
        """An ordinary read of a small file from the origin has succeeded."""
        way = self._ways.get(_key(origin))
        if way is None:
            if len(self._ways) >= MOST_SOURCES:
                self._ways.clear()
            way = self._ways[_key(origin)] = _Way()
        if way.valid(self._clock()) is not None or (way.wait == 1 and not self._engine.may_launch):
            return
        way.wait -= 1
        if way.wait == 0:  # below it one is just looking
            self._threads.submit(
                self._look, origin, done=lambda asker, _: self._learned(way, asker)
            )

    def _look(self, origin: Origin) -> Asker | None:
        """In a thread."""
        try:
            asker = self._source.asker(origin)
            return asker if asker is not None and self._engine.launch() else None
        except CacheFSError:
            return None
        except OSError as err:
            log.warning("small files are read by threads: %s", err.strerror)
            return None

    def _learned(self, way: _Way, asker: Asker | None) -> None:
        if not self._engine.attend() or asker is None:
            way.fail()
        else:
            way.asker, way.until_s = asker, self._clock() + KEPT_S

    def at_disk(self) -> list[Hashable]:
        """The write to the disk that is under way, by a name that no other has."""
        return self._engine.at_disk()

    def leave_tier(self) -> None:
        """The disk hangs. Nothing more is written once the process has ended."""
        if self._engine.in_flight:
            self._engine.kill()

    def look(self) -> None:
        """Now and then: a process that does not answer is ended."""
        self._engine.look()

    def _on_end(self) -> None:
        """Threads have to read from each source before the process is started again for it."""
        for way in self._ways.values():
            if way.asker is not None:
                way.fail()

    def close(self, wait_s: float) -> bool:
        """For another thread than the loop's: blocks. What is under way is left to `otherwise`.
        False when something may still be written after `wait_s`."""
        return self._engine.close(wait_s)

    # ---- one read ----

    def _begin(self, read: _Read) -> None:
        self._under_way += 1
        if self._makers is not None:
            done = functools.partial(self._made, read)
            return self._makers.submit(read.small.make_file, done=done)
        try:
            fd = read.small.make_file()
        except CacheFSError as err:
            self._loop.call_soon(self._made, read, -1, err)
        else:
            self._made(read, fd, None)

    def _made(self, read: _Read, fd: int, error: BaseException | None) -> None:
        try:
            if error is not None:
                raise error
            read.small.check()
        except CacheFSError as err:
            return self._end(read, err)
        # Another one may not have come since this one was started.
        is_asked = read.way.asker is read.asker and self._engine.is_ready
        ask = read.asker(read.small.origin) if is_asked else None
        if ask is None:
            self._loop.call_soon(self._not_come, read)
        else:
            self._engine.start(ask.request, fd, functools.partial(self._heard, read, ask))

    def _heard(self, read: _Read, ask: Ask, got: Got | None) -> None:
        if got is None or got.code:
            ask.ended(got.came_bytes if got else 0, got.code if got else LOST)
            return self._not_come(read)
        ask.ended(got.came_bytes, "")
        read.way.failures = 0
        try:
            read.small.came(got)
        except CacheFSError as err:
            return self._end(read, err)
        self._end(read, None)

    def _not_come(self, read: _Read) -> None:
        if read.way.asker is read.asker:  # many fail at once: that is one failure
            read.way.fail()
        try:
            read.small.otherwise(None, None)
        finally:
            self._left()

    def _end(self, read: _Read, error: BaseException | None) -> None:
        try:
            read.small.done(None, error)
        finally:
            self._left()

    def _left(self) -> None:
        """A place is free."""
        self._under_way -= 1
        if self._waiting:
            self._begin(self._waiting.popleft())


def _key(origin: Origin) -> tuple[NamespaceId, str]:
    return origin.content.namespace, origin.ufs
