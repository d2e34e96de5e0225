"""The base class of the decorators: a connector whose every request runs through one method.

A subclass overrides `_around` (a request) and `_body` (a body). Each page of a listing is one
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from cachefs.core.model import Fingerprint
from connectors.base import Body, Connector, Entry, Page
from connectors.capabilities import Capabilities
from connectors.fetch.request import WholeFileRequest
from connectors.pages import WrappedPages

T = TypeVar("T")


class Decorator:
    """A connector that delegates to another. Verbs: check, stat, list_dir, read."""

    def __init__(self, inner: Connector) -> None:
        self._inner = inner

    def _around(self, verb: str, act: Callable[[], T]) -> T:
        return act()

    def _body(self, open_body: Callable[[], Body]) -> Body:
        return self._around("read", open_body)

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def check(self) -> None:
        self._around("check", self._inner.check)

    def stat(self, path: bytes) -> Entry:
        return self._around("stat", lambda: self._inner.stat(path))

    def list_dir(self, path: bytes) -> Iterator[Page]:
        inner = self._inner.list_dir(path)
        return WrappedPages(inner, lambda act: self._around("list_dir", act))

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        return self._body(lambda: self._inner.read(path, offset, size, version))

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return self._around("read", lambda: self._inner.read_all(path, version))

    def ask(self, path: bytes, version: Fingerprint) -> WholeFileRequest | None:
        return self._inner.ask(path, version)

    def close(self) -> None:
        self._inner.close()
