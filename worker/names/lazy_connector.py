"""A connector that is created by its first request: the reading thread requests the source of a key
from the master and creates the adapter. If the origin denies access, or if the master reports that
sources may have changed, the connector looks the source up again: an operator may have given it
other options.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from cachefs.core.errors import AccessDenied, CacheFSError, CredentialsMissing, Unreachable
from cachefs.core.model import Fingerprint
from connectors.base import Body, Connector, Entry, Page
from connectors.capabilities import Capabilities
from connectors.fetch.request import RangeRequest

FAILURE_KEPT_S: Final = 2.0
AGAIN_S: Final = 5.0  # between lookups while the origin denies access


class LazyConnector:
    """A lazily created connector. `find` blocks and may raise the typed errors; a failure is raised
    again for `FAILURE_KEPT_S`. A later `find` may return another connector. The owner of `find`
    closes all that it returns. Thread-safe. All methods but `ask` and `close` may block."""

    def __init__(
        self, find: Callable[[], Connector], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._find = find
        self._clock = clock
        self._lock = threading.Lock()
        self._inner: Connector | None = None
        self._failure: CacheFSError | None = None
        self._looked_at = 0.0
        self._refused = False  # the origin denied access, or the last lookup failed
        self._may_differ = False  # the master's source may have other options
        self._closed = False

    def _found(self) -> Connector:
        inner = self._inner
        if inner is not None and not self._refused and not self._may_differ:
            return inner
        with self._lock:  # one thread looks the source up, the others wait for it
            if self._inner is None:
                return self._look()
            is_due = self._clock() - self._looked_at >= AGAIN_S
            if self._may_differ or (self._refused and is_due):
                self._refused = self._may_differ = False
                try:
                    self._look()
                except CacheFSError:  # the former connector stays in use until the next lookup
                    self._refused = True
            return self._inner

    def look_again(self) -> None:
        """Has the next request look the source up. Never blocks."""
        self._may_differ = True

    def _look(self) -> Connector:
        if self._closed:
            raise Unreachable("this node is ending")
        if self._failure is not None and self._clock() - self._looked_at < FAILURE_KEPT_S:
            raise self._failure
        self._looked_at = self._clock()
        try:
            found = self._find()
        except CacheFSError as err:
            self._failure = err
            raise
        self._failure, self._inner = None, found
        return found

    @property
    def capabilities(self) -> Capabilities:
        return self._found().capabilities

    @contextlib.contextmanager
    def _using(self) -> Iterator[Connector]:
        found = self._found()
        try:
            yield found
        except (AccessDenied, CredentialsMissing):  # to the source, or to this object only
            self._refused = True
            raise

    def check(self) -> None:
        with self._using() as found:
            found.check()

    def stat(self, path: bytes) -> Entry:
        with self._using() as found:
            return found.stat(path)

    def list_dir(self, path: bytes) -> Iterator[Page]:
        return self._found().list_dir(path)

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        with self._using() as found:
            return found.read(path, offset, size, version)

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        with self._using() as found:
            return found.read_all(path, version)

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        inner = self._inner
        if inner is None or self._refused or self._may_differ:
            return None  # a reading thread looks the source up first
        return inner.ask(path, offset, size, version)

    def close(self) -> None:
        """Ends the lookups; waits for none."""
        self._closed = True
