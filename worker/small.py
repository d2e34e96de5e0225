"""Whole small files from the origin, without a thread for each (`connectors.streams`).

A source whose files can be read so is known from the first file of it that a thread has read. What
does not come this way is left to the threads, and so is what comes after it, until one of them has
succeeded; twice as many each time that nothing has come in between: an origin that always answers
otherwise than this way understands is not to be asked for each file twice.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import NamespaceId, Origin
from connectors.base import Ask
from connectors.streams import Streams
from worker.source import Asker, Source, SourceBody, WholeBody
from worker.threads import Done, Threads, Wake

MOST_SOURCES: Final = 1000
MOST_WAIT: Final = 256

Store = Callable[[SourceBody], None]


class _Way:
    """To one source. `asker` None: by threads, until `wait` more of their reads have succeeded.
    `failures`: in a row."""

    __slots__ = ("asker", "failures", "wait")

    def __init__(self) -> None:
        self.asker: Asker | None = None
        self.failures = 0
        self.wait = 1

    def fail(self) -> None:
        self.asker = None
        self.wait = min(MOST_WAIT, 1 << self.failures)
        if self.wait < MOST_WAIT:
            self.failures += 1


class SmallReads:
    """`writers`: threads that write what came, where writing may block; None: the thread that
    receives does it. `learn` is for any thread, the rest belongs to the loop."""

    def __init__(self, source: Source, wake: Wake, writers: Threads | None) -> None:
        self._source = source
        self._wake = wake
        self._writers = writers
        self._streams = Streams("fetch-small")
        self._ways: dict[tuple[NamespaceId, str], _Way] = {}
        self._lock = threading.Lock()  # of changes of ways

    def start(self, origin: Origin, store: Store, done: Done, otherwise: Done) -> bool:
        """Brings all of a file. When it is there `store(body)` is called in a thread, which raises
        what it likes, and then `done(None, error)` in the loop. Where it does not come, `otherwise`
        is called in the loop in place of both. False: not in this way, and nothing is called."""
        way = self._ways.get(_key(origin))
        if way is None or (asker := way.asker) is None:
            return False
        return self._streams.start(
            functools.partial(self._prepare, way, asker, origin),
            functools.partial(self._taken, way, asker, store, done, otherwise),
        )

    def learn(self, origin: Origin) -> None:
        """An ordinary read of a small file has succeeded. May wait."""
        way = self._ways.get(_key(origin))
        if way is not None and way.asker is not None:
            return
        with self._lock:
            if way is None and len(self._ways) >= MOST_SOURCES:
                return
            way = self._ways.setdefault(_key(origin), _Way())
            way.wait -= 1
            if way.wait != 0:  # below it one is just looking
                return
        asker = self._asker(origin)
        with self._lock:
            if asker is None:
                way.fail()
            else:
                way.asker = asker

    def _asker(self, origin: Origin) -> Asker | None:
        try:
            return self._source.asker(origin)
        except CacheFSError:
            return None

    def close(self, wait_s: float) -> bool:
        """What is under way is left to `otherwise`. Blocks; False when some write is still under
        way after `wait_s`."""
        return self._streams.close(wait_s)

    # ---- in the thread of the streams ----

    def _prepare(self, way: _Way, asker: Asker, origin: Origin) -> Ask | None:
        """None also where another one has not come since this one was started."""
        return asker(origin) if way.asker is asker else None

    def _taken(
        self,
        way: _Way,
        asker: Asker,
        store: Store,
        done: Done,
        otherwise: Done,
        body: memoryview | None,
    ) -> None:
        if body is None:
            with self._lock:
                if way.asker is asker:  # many fail at once: that is one failure
                    way.fail()
            self._wake.call(otherwise, None, None)
            return
        way.failures = 0
        if self._writers is not None:
            self._wake.call(self._write, self._writers, store, done, bytes(body))
        else:
            self._wake.call(done, None, _error_of(store, WholeBody(body, len(body))))

    # ---- in the loop ----

    def _write(self, writers: Threads, store: Store, done: Done, data: bytes) -> None:
        writers.submit(store, WholeBody(memoryview(data), len(data)), done=done)


def _key(origin: Origin) -> tuple[NamespaceId, str]:
    return origin.content.namespace, origin.ufs


def _error_of(store: Store, body: SourceBody) -> BaseException | None:
    try:
        store(body)
    except BaseException as err:  # noqa: BLE001 -- handed to whoever waits for the result
        return err
    return None
