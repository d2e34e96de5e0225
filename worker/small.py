"""Whole small files from the origin, without a thread for each (`connectors.streams`).

A source whose files can be read so is known from the first file of it that a thread has read. What
does not come this way is left to the threads, and so is what comes after it, until one of them has
succeeded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from cachefs.core.errors import CacheFSError
from cachefs.core.model import NamespaceId, Origin
from connectors.streams import Streams
from worker.source import Asker, Source, SourceBody, WholeBody
from worker.threads import Done, Threads, Wake

MOST_SOURCES = 1000

Store = Callable[[SourceBody], None]


class SmallReads:
    """`writers`: threads that write what came, where writing may block; None: the thread that
    receives does it. `learn` is for any thread, the rest belongs to the loop."""

    def __init__(self, source: Source, wake: Wake, writers: Threads | None) -> None:
        self._source = source
        self._wake = wake
        self._writers = writers
        self._streams = Streams("fetch-small")
        self._askers: dict[tuple[NamespaceId, str], Asker] = {}

    def start(self, origin: Origin, store: Store, done: Done, otherwise: Done) -> bool:
        """Brings all of a file. When it is there `store(body)` is called in a thread, which raises
        what it likes, and then `done(None, error)` in the loop. Where it does not come, `otherwise`
        is called in the loop in place of both. False: not in this way, and nothing is called."""
        asker = self._askers.get(_key(origin))
        if asker is None:
            return False
        return self._streams.start(
            functools.partial(asker, origin),
            functools.partial(self._taken, origin, store, done, otherwise),
        )

    def learn(self, origin: Origin) -> None:
        """An ordinary read of a small file has succeeded. May wait."""
        key = _key(origin)
        if key in self._askers:
            return
        try:
            asker = self._source.asker(origin)
        except CacheFSError:
            return
        if asker is not None and len(self._askers) < MOST_SOURCES:
            self._askers[key] = asker

    def close(self, wait_s: float) -> bool:
        """What is under way is left to `otherwise`. Blocks; False when some write is still under
        way after `wait_s`."""
        return self._streams.close(wait_s)

    # ---- in the thread of the streams ----

    def _taken(
        self, origin: Origin, store: Store, done: Done, otherwise: Done, body: memoryview | None
    ) -> None:
        if body is None:
            self._askers.pop(_key(origin), None)
            self._wake.call(otherwise, None, None)
        elif self._writers is not None:
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
