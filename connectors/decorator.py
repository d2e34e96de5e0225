"""The base class of the decorators: a connector whose every request runs through one method.

A subclass overrides `_around` (a request) and `_body` (a body). Each page of a listing is one
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from cachefs.core.model import Fingerprint
from connectors.base import Body, Connector, Entry, Page
from connectors.capabilities import Capabilities
from connectors.fetch.request import RangeRequest
from connectors.pages import WrappedPages
from connectors.writing import Expect, Expectation, writer_of

T = TypeVar("T")


class Decorator:
    """A connector that delegates to another. Verbs: check, stat, list_dir, read,
    and the methods of `connectors.writing.Writer`."""

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

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        return self._inner.ask(path, offset, size, version)

    def close(self) -> None:
        self._inner.close()

    # The writing half; each method raises Unsupported if the inner connector lacks it.

    def put(self, path: bytes, data: memoryview, expect: Expectation) -> Fingerprint:
        return self._around("put", lambda: writer_of(self._inner).put(path, data, expect))

    def begin(self, path: bytes, part_bytes: int) -> bytes:
        return self._around("begin", lambda: writer_of(self._inner).begin(path, part_bytes))

    def put_part(self, token: bytes, number: int, data: memoryview) -> bytes:
        inner = writer_of(self._inner)
        return self._around("put_part", lambda: inner.put_part(token, number, data))

    def finish(self, token: bytes, receipts: Sequence[bytes], expect: Expectation) -> Fingerprint:
        inner = writer_of(self._inner)
        return self._around("finish", lambda: inner.finish(token, receipts, expect))

    def abort(self, token: bytes) -> None:
        self._around("abort", lambda: writer_of(self._inner).abort(token))

    def copy(
        self, source: bytes, version: Fingerprint, target: bytes, expect: Expectation
    ) -> Fingerprint:
        inner = writer_of(self._inner)
        return self._around("copy", lambda: inner.copy(source, version, target, expect))

    def rename(self, source: bytes, target: bytes, expect: Expectation) -> None:
        self._around("rename", lambda: writer_of(self._inner).rename(source, target, expect))

    def delete(self, path: bytes, expect: Expectation) -> None:
        self._around("delete", lambda: writer_of(self._inner).delete(path, expect))

    def mkdir(self, path: bytes, expect: Expect) -> None:
        self._around("mkdir", lambda: writer_of(self._inner).mkdir(path, expect))
