"""The connectors of mounts without a reachable origin: created directories that have no source,
and sources that cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NoReturn

from cachefs.core.errors import CacheFSError, NotFound, Unavailable
from cachefs.core.model import Fingerprint, Kind
from connectors.base import Body, Entry, Page
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import RangeRequest

_PLAIN: Final = Capabilities(
    ordered_listings=True,
    directories=False,
    posix_attributes=False,
    symlinks=False,
    identity=Identity.TIME,
    refuses_other_versions=False,
    mtime_precision_ns=1,
)


class _NoOrigin:
    """What both connectors share."""

    capabilities = _PLAIN

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        return None

    def close(self) -> None:
        """Nothing is open."""


class NullConnector(_NoOrigin):
    """The connector of an empty origin."""

    def check(self) -> None:
        """Always succeeds."""

    def stat(self, path: bytes) -> Entry:
        if not path:
            return Entry(b"", Fingerprint(Kind.DIRECTORY))
        raise NotFound("no source is there")

    def list_dir(self, path: bytes) -> Iterator[Page]:
        return iter(())

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        raise NotFound("no source is there")

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        raise NotFound("no source is there")


class UnavailableConnector(_NoOrigin):
    """The connector of an unopened source: fails like a down origin; stored metadata is served."""

    def __init__(self, why: CacheFSError) -> None:
        self.why = why

    def check(self) -> None:
        self._fail()

    def stat(self, path: bytes) -> Entry:
        self._fail()

    def list_dir(self, path: bytes) -> Iterator[Page]:
        self._fail()

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        self._fail()

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        self._fail()

    def _fail(self) -> NoReturn:
        raise Unavailable(self.why.cause, remedy=self.why.remedy) from self.why
