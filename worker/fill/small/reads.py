"""Whole small files from the origin by one process for all of them (`worker.fill.small.engine`).
What does not come so is left to the threads. Owned by the loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from cachefs.core.errors import Interrupted
from cachefs.core.model import Origin
from connectors.fetch.request import AT_ONCE, NOT_SENT, Ask
from worker.fill.small.engine import Engine, Spawn, spawn
from worker.fill.small.wire import Got
from worker.fill.source import Source
from worker.runtime.threads import Done, Threads

log = logging.getLogger(__name__)

RECENT_S: Final = 60.0
LOST: Final = Interrupted.code  # nobody can say what it came to

MakeFile = Callable[[], int]
Came = Callable[[Got], None]


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


class SmallReads:
    """`threads` start the process. `makers`: threads that make files, where that may block; None:
    the loop does it."""

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
        self._engine = Engine(spawn, clock)
        self._is_launching = False
        self._under_way = 0
        self._asked_s = float("-inf")  # when a file was asked for last

    def start(self, small: Small) -> bool:
        """Brings all of a file; how it ended is told after this has returned. False: not in this
        way, and nothing is called."""
        if not self._engine.is_ready:
            self.learn(small.origin)
            return False
        ask = self._source.ask(small.origin) if self._under_way < AT_ONCE else None
        if ask is None:
            return False
        self._asked_s = self._clock()
        self._under_way += 1
        made = functools.partial(self._made, small, ask)
        if self._makers is not None:
            self._makers.submit(small.make_file, done=made)
            return True
        try:
            fd = small.make_file()
        except Exception as err:  # noqa: BLE001 -- handed to the one who waits for the file
            self._loop.call_soon(made, -1, err)
        else:
            made(fd, None)
        return True

    @property
    def serves(self) -> bool:
        """Returns whether files came so of late."""
        return self._engine.is_ready and self._clock() - self._asked_s < RECENT_S

    def learn(self, origin: Origin) -> None:
        """A small file of this source is read by a thread: starts the process where it could have
        been asked instead."""
        engine = self._engine
        if engine.is_launched or self._is_launching or not engine.may_launch:
            return
        ask = self._source.ask(origin)
        if ask is not None:
            ask.ended(0, NOT_SENT)
            self._is_launching = True
            self._threads.submit(engine.launch, done=self._launched)

    def _launched(self, _: object, error: BaseException | None) -> None:
        self._is_launching = False
        if isinstance(error, OSError):
            log.warning("small files are read by threads: %s", error)
        self._engine.attend()

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

    def close(self, wait_s: float) -> bool:
        """For another thread than the loop's: blocks. What is under way is left to `otherwise`.
        False when something may still be written after `wait_s`."""
        return self._engine.close(wait_s)

    # ---- one read ----

    def _made(self, small: Small, ask: Ask, fd: int, error: BaseException | None) -> None:
        error = error or _failure(small.check)
        if error is not None:
            ask.ended(0, NOT_SENT)
            return self._end(small, error)
        if self._engine.is_ready:
            self._engine.start(ask.get, fd, functools.partial(self._heard, small, ask))
        else:
            self._loop.call_soon(self._heard, small, ask, None)

    def _heard(self, small: Small, ask: Ask, got: Got | None) -> None:
        if got is not None and got.made.connections:
            ask.made(got.made)
        ask.ended(got.came_bytes if got else 0, got.code if got else LOST)
        if got is None or got.code:
            self._under_way -= 1
            return small.otherwise(None, None)
        self._end(small, _failure(lambda: small.came(got)))

    def _end(self, small: Small, error: BaseException | None) -> None:
        self._under_way -= 1
        small.done(None, error)


def _failure(act: Callable[[], None]) -> Exception | None:
    """Returns what `act` raises. Of whatever type that is, a read ends with it: its place is free
    again, and the one who waits for the file is told."""
    try:
        act()
    except Exception as err:  # noqa: BLE001 -- handed to the one who waits for the file
        return err
    return None
