"""The connector of an SQLite file. A row is a file; its version grows with each change."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from cachefs.core.errors import NotFound, OriginError, Stale, Unavailable
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.base import Body, Entry, Page, order_key
from connectors.bodies import EmptyBody, read_whole_body
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import RangeRequest
from connectors.pages import Pages

PAGE = 1000
DIRECTORY = Fingerprint(Kind.DIRECTORY)
FILES = "SELECT path, length(data), mtime_s, version FROM files WHERE substr(path, 1, ?) = ?"


class SqliteConnector:
    capabilities = Capabilities(
        ordered_listings=True,
        directories=False,
        posix_attributes=False,
        symlinks=False,
        identity=Identity.CONTENT,
        refuses_other_versions=True,
        mtime_precision_ns=10**9,
    )

    def __init__(self, file: str) -> None:
        self._file = file

    @contextlib.contextmanager
    def _open(self, path: bytes) -> Iterator[sqlite3.Connection]:
        where = f"{self._file}:{path!r}"
        if not keys.visible_path(path):
            raise NotFound("no file can have this name", path=where)
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as db:
                yield db
        except sqlite3.OperationalError as error:
            if "unable to open" in str(error) or "no such table" in str(error):
                raise NotFound(str(error), remedy="check the file", path=where) from error
            raise Unavailable(str(error), path=where) from error
        except sqlite3.DatabaseError as error:
            raise OriginError(str(error), path=where) from error

    def check(self) -> None:
        with self._open(b"") as db:
            db.execute("SELECT path FROM files LIMIT 1").fetchone()

    def _files(self, path: bytes, prefix: bytes) -> dict[bytes, Fingerprint]:
        """Returns the files whose path starts with the prefix, by the rest of their path."""
        with self._open(path) as db:
            return {
                key[len(prefix) :]: Fingerprint(Kind.FILE, size, mtime_s * 10**9, str(version))
                for key, size, mtime_s, version in db.execute(FILES, (len(prefix), prefix))
            }

    def stat(self, path: bytes) -> Entry:
        name = path.rpartition(b"/")[2]
        found = self._files(path, path)
        if not path or any(rest.startswith(b"/") for rest in found):
            return Entry(name, DIRECTORY)
        if b"" not in found:
            raise NotFound("no such file", path=repr(path))
        return Entry(name, found[b""])

    def list_dir(self, path: bytes) -> Iterator[Page]:
        children: list[Entry] = []

        def fetch(start: int | None) -> tuple[Page, int | None]:
            hidden = 0
            if start is None:
                children[:], hidden = _children(self._files(path, path + b"/" if path else b""))
            end = (start or 0) + PAGE
            page = Page(children[start or 0 : end], hidden)
            return page, end if end < len(children) else None

        return Pages(fetch)

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        if offset < 0 or size < 0 or offset + size > version.size:
            raise ValueError(f"{size} bytes at {offset} of a file of {version.size}")
        with self._open(path) as db:
            query = "SELECT substr(data, ?, ?), version FROM files WHERE path = ?"
            row = db.execute(query, (offset + 1, size, path)).fetchone()
        if row is None:
            raise NotFound("no such file", path=repr(path))
        if str(row[1]) != version.etag:
            raise Stale("another version now", path=repr(path))
        return OneChunk(row[0]) if size else EmptyBody()

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return read_whole_body(self.read(path, 0, version.size, version))

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        return None

    def close(self) -> None:
        """Keeps nothing open."""


def _children(below: dict[bytes, Fingerprint]) -> tuple[list[Entry], int]:
    """Returns the entries of a directory in order, and the number of names that are not shown."""
    files = {key: version for key, version in below.items() if b"/" not in key}
    directories = {key.partition(b"/")[0] for key in below if b"/" in key}
    hidden = keys.directories_win(files, directories)
    found = {order_key(name, False): Entry(name, version) for name, version in files.items()}
    found |= {order_key(name, True): Entry(name, DIRECTORY) for name in directories}
    shown = [found[key] for key in sorted(found) if keys.visible(found[key].name)]
    return shown, hidden + len(found) - len(shown)


class OneChunk(EmptyBody):
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[memoryview]:
        return iter([memoryview(self._data)])
