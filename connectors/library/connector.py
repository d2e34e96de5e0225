"""The connector of any file system of a library, as `LibraryTree` describes it. These libraries
have no time-outs of their own, or none that can be relied on, so that each call has a deadline.

No library reads conditionally. So each part of a read is followed by a comparison of the version,
before its bytes are yielded: a file that changed in between has another time, size or etag.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from cachefs.core.errors import BadBody, CacheFSError, NotFound, Stale
from cachefs.core.model import Fingerprint
from connectors import keys
from connectors.base import Body, Connector, Entry, Page, check_range
from connectors.bodies import EmptyBody, read_whole_body
from connectors.bounds import NS
from connectors.call_deadline import Deadline
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import RangeRequest
from connectors.library.errors import translated
from connectors.library.options import FIXED
from connectors.library.tree import DIRECTORY, LibraryTree, VersionRule
from connectors.pages import Pages

PAGE_ENTRIES: Final = 1000
# Of one read of the library, after which the version is compared. Over a far connection it has to
# fit into the deadline of a call: sftp waits for each 32 KiB.
PART_BYTES: Final = 1 << 20
# The protocols of fsspec whose facts hold an etag or a generation.
_WITH_VERSIONS: Final = frozenset({"abfs", "az", "gcs", "gs", "s3", "s3a"})
_CAPABILITIES: Final = Capabilities(
    ordered_listings=False,
    directories=True,
    posix_attributes=False,
    symlinks=False,
    identity=Identity.TIME,
    refuses_other_versions=False,
    mtime_precision_ns=1,
)


def open_fsspec(url: str, options: Mapping[str, str]) -> Connector:
    """Returns the connector of `fsspec+PROTO://...`, which connects at the first call."""
    from connectors.library.fsspec_tree import FsspecTree

    inner = url.removeprefix("fsspec+")
    has_versions = inner.partition("://")[0] in _WITH_VERSIONS
    capabilities = msgspec.structs.replace(
        _CAPABILITIES,
        identity=Identity.CONTENT if has_versions else Identity.TIME,
        mtime_precision_ns=NS if has_versions else 10**3,
    )
    return _opened(FsspecTree(inner, options), options, capabilities)


def open_arrow(url: str, options: Mapping[str, str]) -> Connector:
    """Returns the connector of `arrow+PROTO://...`, which connects at the first call."""
    from connectors.library.arrow_tree import ArrowTree

    inner = url.removeprefix("arrow+")
    capabilities = msgspec.structs.replace(
        _CAPABILITIES, mtime_precision_ns=NS if inner.startswith("s3://") else 1
    )
    return _opened(ArrowTree(inner, options), options, capabilities)


def _opened(tree: LibraryTree, options: Mapping[str, str], capabilities: Capabilities) -> Connector:
    rule = VersionRule(options.get(FIXED) == "true", capabilities.mtime_precision_ns)
    if rule.is_fixed and capabilities.identity is Identity.TIME:
        capabilities = msgspec.structs.replace(capabilities, identity=Identity.FIXED)
    return Deadline(LibraryConnector(tree, rule, capabilities))


_Listed = tuple[list[Entry], int]  # the entries of a directory, and how many of them were sent


class LibraryConnector:
    """A directory of a library's file system. Listings are in any order."""

    def __init__(self, tree: LibraryTree, rule: VersionRule, capabilities: Capabilities) -> None:
        self._tree = tree
        self._rule = rule
        self.capabilities = capabilities

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        return None

    def close(self) -> None:
        self._tree.close()

    def check(self) -> None:
        """Checks that the root is a directory. Lists nothing: a library would list all of it."""
        with self._translated(b""):
            found = self._tree.stat(b"")
            if found is None or not found.is_directory:
                cause = "no such directory" if found is None else "this is a file, not a directory"
                raise NotFound(cause, remedy="check the URL", path=self._shown(b""))

    def stat(self, path: bytes) -> Entry:
        if not path:
            return Entry(b"", DIRECTORY)
        self._check_name(path)
        with self._translated(path):
            found = self._tree.stat(path)
            entry = self._rule.entry(found) if found else None
        if entry is None:
            raise NotFound("no such file or directory", path=self._shown(path))
        return entry

    def list_dir(self, path: bytes) -> Iterator[Page]:
        self._check_name(path)

        def fetch(listed: _Listed | None) -> tuple[Page, _Listed | None]:
            hidden = 0
            if listed is None:
                entries, hidden = self._entries(path)
                listed = entries, 0
            entries, start = listed
            end = start + PAGE_ENTRIES
            page = Page(entries[start:end], hidden)
            return page, (entries, end) if end < len(entries) else None

        return Pages(fetch)

    def _entries(self, path: bytes) -> tuple[list[Entry], int]:
        """Returns the entries of a directory, and the number of hidden names."""
        with self._translated(path):
            found, uncounted = self._tree.names(path)
            entries, hidden = self._rule.entries(found)
        return entries, hidden + uncounted

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        check_range(offset, size, version)
        if size:
            return PartsBody(self, path, offset, size, version)
        self._compare(path, version)
        return EmptyBody()

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return read_whole_body(self.read(path, 0, version.size, version))

    def read_part(self, path: bytes, offset: int, size: int, version: Fingerprint) -> memoryview:
        """Returns a range of exactly this version. Raises Stale, NotFound, BadBody."""
        with self._translated(path):
            try:
                data = self._tree.read(path, offset, size)
            except Exception:
                self._compare(path, version)  # of a shorter file, libraries refuse the range
                raise
        self._compare(path, version)
        if len(data) != size:
            cause = f"{len(data)} bytes at {offset} instead of {size}"
            raise BadBody(cause, path=self._shown(path))
        return data

    def _compare(self, path: bytes, version: Fingerprint) -> None:
        """Raises Stale unless the file has this version, NotFound if it was deleted."""
        if self.stat(path).fingerprint != version:
            raise Stale("the file is another version now", path=self._shown(path))

    def _check_name(self, path: bytes) -> None:
        if not keys.visible_path(path):
            raise NotFound("no such file or directory", path=self._shown(path))

    def _shown(self, path: bytes) -> str:
        return f"{self._tree.where}/{path.decode('utf-8', 'backslashreplace')}".rstrip("/")

    @contextlib.contextmanager
    def _translated(self, path: bytes) -> Iterator[None]:
        try:
            yield
        except CacheFSError as error:
            error.path = error.path or self._shown(path)
            raise
        except UnicodeError as error:
            raise NotFound("the store has no such names", path=self._shown(path)) from error
        except Exception as error:
            raise translated(error, self._shown(path)) from error


class PartsBody:
    """The bytes of a range, read in parts. For one thread."""

    def __init__(
        self,
        connector: LibraryConnector,
        path: bytes,
        offset: int,
        size: int,
        version: Fingerprint,
    ) -> None:
        self._connector = connector
        self._path = path
        self._offset = offset
        self._left = size
        self._version = version

    def __iter__(self) -> Iterator[memoryview]:
        while self._left > 0:
            size = min(PART_BYTES, self._left)
            part = self._connector.read_part(self._path, self._offset, size, self._version)
            self._offset += size
            self._left -= size
            yield part

    def close(self) -> None:
        """Ends the iteration at its next chunk. Does not interrupt a read of the library."""
        self._left = 0
