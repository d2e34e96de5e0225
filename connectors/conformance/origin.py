"""What the suite needs of a store: a connector, and a way to change the store past it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from cachefs.core.model import Kind
from connectors.base import Connector, Entry, Page, order_key


class Origin(Protocol):
    """A UFS whose root exists and is empty but for what a test puts. Subclass it."""

    connector: Connector

    def put(self, path: bytes, data: bytes) -> None:
        """Creates or replaces a file, and the directories above it. Each call gives a version
        that the connector distinguishes from all before it."""

    def put_all(self, files: dict[bytes, bytes]) -> None:
        """Creates many files, in any order."""
        for path, data in files.items():
            self.put(path, data)

    def delete(self, path: bytes) -> None:
        """Removes a file."""

    def reopen(self) -> Connector:
        """Returns another connector of the same store, as another process has it. Only the tests
        of writing call this."""
        raise NotImplementedError


MakeOrigin = Callable[[], Origin]


def entries(pages: Iterable[Page]) -> list[Entry]:
    return [entry for page in pages for entry in page.entries]


def keys_of(found: list[Entry]) -> list[bytes]:
    return [order_key(e.name, e.fingerprint.kind is Kind.DIRECTORY) for e in found]


def content(connector: Connector, path: bytes, offset: int = 0, size: int | None = None) -> bytes:
    """Returns the bytes of a file as it is now."""
    version = connector.stat(path).fingerprint
    size = version.size - offset if size is None else size
    body = connector.read(path, offset, size, version)
    try:
        return b"".join(bytes(chunk) for chunk in body)
    finally:
        body.close()
