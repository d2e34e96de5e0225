"""The read-only connector of an HDFS directory: `hdfs://namenode:8020/path`.

HDFS shows no number and no checksum of a version: a file is known by its size and its mtime in ms.
The blocks of a file are looked up before its status, so bytes of an older version cannot pass for
the one that the status shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import BadBody, NotFound, Stale, Unavailable
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.base import Body, Entry, Page, check_range
from connectors.bodies import read_whole_body
from connectors.bounds import clamped_ns, is_file_size
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import RangeRequest
from connectors.hdfs.client import HdfsClient
from connectors.hdfs.listing import HdfsListing
from connectors.hdfs.options import HdfsOptions
from connectors.hdfs.owners import Ids, group_id, user_id
from connectors.pages import Pages

if TYPE_CHECKING:
    from hdfs_native import Client, FileReader, FileStatus

WHOLE_BYTES: Final = 4 << 20  # larger files are not read in one piece
PACKETS_AT_ONCE: Final = 16  # of 64 KiB, usually: each has a share of the deadline of a call
NS_PER_MS: Final = 10**6
_PERMISSIONS: Final = 0o1777  # HDFS has no set-user-ID bits: a cache file of root never gets one
_DIRECTORY: Final = Fingerprint(Kind.DIRECTORY)
_CAPABILITIES: Final = Capabilities(
    ordered_listings=False,  # HDFS compares the bytes of names as signed numbers
    directories=True,
    posix_attributes=True,
    symlinks=False,
    identity=Identity.TIME,
    refuses_other_versions=False,
    mtime_precision_ns=NS_PER_MS,
    directory_times=True,
)


class HdfsConnector:
    """The tree below `root`, an absolute path without a trailing '/' ("": all of it)."""

    def __init__(self, authority: str, root: str, options: HdfsOptions) -> None:
        self._client = HdfsClient(authority, options)
        self._root = root
        self._users = Ids(user_id)
        self._groups = Ids(group_id)

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        return None

    def close(self) -> None:
        self._client.close()

    def check(self) -> None:
        shown = self._shown(b"")
        status = self._status(shown)
        if not status.isdir:
            raise NotFound("not a directory", path=shown, remedy="name a directory of HDFS")
        self._client.call(shown, lambda client: next(client.list_status(shown), None))

    def stat(self, path: bytes) -> Entry:
        shown = self._shown(path)
        entry = self._entry(self._status(shown), path.rpartition(b"/")[2])
        if entry is None:
            raise NotFound("a file of an impossible size is not shown", path=shown)
        return entry

    def list_dir(self, path: bytes) -> Iterator[Page]:
        shown = self._shown(path)

        own = HdfsListing(shown, self._entry)

        def fetch(listing: HdfsListing | None) -> tuple[Page, HdfsListing | None]:
            page = self._client.call(shown, own.take)
            return page, None if own.is_done else own

        return Pages(fetch)

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        check_range(offset, size, version)
        shown = self._shown(path)
        reader = self._client.call(shown, lambda client: _open(client, shown, version))
        return HdfsBody(self._client, reader, shown, offset, size)

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        if version.size > WHOLE_BYTES:
            return read_whole_body(self.read(path, 0, version.size, version))
        shown = self._shown(path)
        return self._client.call(shown, lambda client: _read_all(client, shown, version))

    def _status(self, shown: str) -> FileStatus:
        return self._client.call(shown, lambda client: client.get_file_info(shown))

    def _entry(self, status: FileStatus, name: bytes) -> Entry | None:
        """Returns the entry of a name; None for a size that no file can have."""
        if not (status.isdir or is_file_size(status.length)):
            return None
        owner, group = self._users.id_of(status.owner), self._groups.id_of(status.group)
        changed_ns = clamped_ns(status.modification_time * NS_PER_MS) if status.isdir else 0
        mode = status.permission & _PERMISSIONS
        return Entry(name, _fingerprint(status), mode, owner, group, b"", changed_ns)

    def _shown(self, path: bytes) -> str:
        """Returns the path in HDFS. Raises NotFound for one that HDFS cannot have."""
        shown = f"{self._root}/{path.decode('utf-8', 'backslashreplace')}".rstrip("/") or "/"
        if not keys.visible_path(path) or b":" in path or not _is_text(path):
            raise NotFound("no such file or directory", path=shown)
        return shown


def _is_text(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fingerprint(status: FileStatus) -> Fingerprint:
    if status.isdir:
        return _DIRECTORY
    return Fingerprint(Kind.FILE, status.length, clamped_ns(status.modification_time * NS_PER_MS))


def _open(client: Client, path: str, version: Fingerprint) -> FileReader:
    """Returns a reader of exactly that version. Raises Stale, Unavailable and the library's
    errors."""
    reader = client.read(path)
    if _fingerprint(client.get_file_info(path)) != version:
        raise Stale("the file is another version now", path=path)
    if len(reader) < version.size:
        cause = f"the file is being written: {len(reader)} of {version.size} bytes can be read"
        raise Unavailable(cause, path=path, remedy="read it after its writer has closed it")
    return reader


def _read_all(client: Client, path: str, version: Fingerprint) -> memoryview:
    reader = _open(client, path, version)
    data = reader.read_range(0, version.size) if version.size else b""
    if len(data) != version.size:
        raise BadBody(f"{len(data)} bytes instead of {version.size}", path=path)
    return memoryview(data)


class HdfsBody:
    """Bytes of one open file, in packets of its DataNodes. A reader of the library is a snapshot of
    the file."""

    def __init__(
        self, client: HdfsClient, reader: FileReader, path: str, offset: int, size: int
    ) -> None:
        self._client = client
        self._reader: FileReader | None = reader
        self._path = path
        self._offset = offset
        self._left = size
        self._packets: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[memoryview]:
        while self._left and (reader := self._reader) is not None:
            packets = self._client.call(self._path, lambda _: self._take(reader))
            if not packets:
                raise BadBody(f"the file ended {self._left} bytes early", path=self._path)
            for packet in packets:
                self._offset += len(packet)
                self._left -= len(packet)
                yield memoryview(packet)

    def _take(self, reader: FileReader) -> list[bytes]:
        """Returns the next packets. After an error the next call begins a new stream."""
        packets = self._packets or reader.read_range_stream(self._offset, self._left)
        self._packets = None
        taken = list(islice(packets, PACKETS_AT_ONCE))
        self._packets = packets
        return taken

    def close(self) -> None:
        """Ends the body after the packets that are being read."""
        self._reader = None
