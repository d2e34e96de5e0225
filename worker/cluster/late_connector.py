"""A connector whose source is found when the first request needs it: the master is asked which
source a key names, and the adapter is made, by the thread that reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from cachefs.core.errors import CacheFSError, Unreachable
from cachefs.core.model import Fingerprint
from connectors.base import Body, Capabilities, Connector, Entry, Page

FAILURE_KEPT_S: Final = 2.0


class LateConnector:
    """`find` blocks, and may raise the typed errors; its failure counts for `FAILURE_KEPT_S`.
    Thread-safe; no method belongs in an event loop but `close`."""

    def __init__(
        self, find: Callable[[], Connector], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._find = find
        self._clock = clock
        self._lock = threading.Lock()
        self._inner: Connector | None = None
        self._failure: CacheFSError | None = None
        self._failed_at = 0.0
        self._closed = False

    def _found(self) -> Connector:
        inner = self._inner
        if inner is not None:
            return inner
        with self._lock:  # one asks, the others wait for its answer
            return self._inner or self._look()

    def _look(self) -> Connector:
        if self._closed:
            raise Unreachable("this node is ending")
        if self._failure is not None and self._clock() - self._failed_at < FAILURE_KEPT_S:
            raise self._failure
        try:
            found = self._find()
        except CacheFSError as err:
            self._failure, self._failed_at = err, self._clock()
            raise
        if self._closed:
            found.close()
            raise Unreachable("this node is ending")
        self._failure, self._inner = None, found
        return found

    @property
    def capabilities(self) -> Capabilities:
        return self._found().capabilities

    def check(self) -> None:
        self._found().check()

    def stat(self, path: bytes) -> Entry:
        return self._found().stat(path)

    def list_dir(self, path: bytes, after: bytes = b"") -> Iterator[Page]:
        return self._found().list_dir(path, after)

    def list_tree(self, path: bytes) -> Iterator[Page]:
        return self._found().list_tree(path)

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        return self._found().read(path, offset, size, version)

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return self._found().read_all(path, version)

    def close(self) -> None:
        """Does not wait for a thread that is just looking."""
        self._closed = True
        if self._inner is not None:
            self._inner.close()
