"""A file system of fsspec as a `LibraryTree`.

fsspec's own caches of listings and instances are off: a change must be seen. Some of its file
systems mix up the replies of threads that share one (sftp), so that each thread has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from fsspec.core import url_to_fs
from fsspec.dircache import DirCache

from cachefs.core.errors import NotFound, OriginError
from connectors.base import clean_etag
from connectors.library.arguments import Arguments, Values
from connectors.library.pool import Instances
from connectors.library.tree import Facts, time_ns

_VERSIONS: Final = ("generation", "etag", "ETag", "e_tag", "version_id")
_TIMES: Final = (
    "mtime", "LastModified", "last_modified", "Last-Modified", "last_commit", "updated", "modified",
    "modify", "created",
)  # fmt: skip


class FsspecTree:
    """The directory of a URL. Connects at the first call."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """`url`: with fsspec's scheme only."""
        self.where = f"fsspec+{url}"
        self._url = url
        self._arguments = Arguments(options)
        self._used: Values | None = None
        self._instances: Instances[tuple[Any, str]] = Instances(self._make, _end)

    def _make(self) -> tuple[Any, str]:
        """Returns a new file system, and its name of the root."""
        arguments: dict[str, Any] = self._arguments.values()
        fs, root = url_to_fs(self._url, skip_instance_cache=True, **arguments)
        fs.dircache = DirCache(use_listings_cache=False)
        return fs, root.rstrip("/")

    def _taken(self) -> AbstractContextManager[tuple[Any, str]]:
        """Returns an instance that was made with the present arguments, and the name of its
        root."""
        if (values := self._arguments.values()) != self._used:
            self._used = values
            self._instances.renew()
        return self._instances.taken()

    def stat(self, path: bytes) -> Facts | None:
        with self._taken() as (fs, root):
            try:
                info = fs.info(_joined(root, path))
            except FileNotFoundError:
                return None
        return _facts(info, path.rpartition(b"/")[2])

    def names(self, path: bytes) -> tuple[list[Facts], int]:
        with self._taken() as (fs, root):
            directory = _joined(root, path)
            found = fs.ls(directory, detail=True)
            shown = [*_told(fs, directory, found)]
        return [facts for facts in shown if facts], shown.count(None)

    def read(self, path: bytes, offset: int, size: int) -> memoryview:
        with self._taken() as (fs, root):
            return memoryview(_read(fs, _joined(root, path), offset, size))

    def close(self) -> None:
        self._instances.close()


def _read(fs: Any, name: str, offset: int, size: int) -> bytes:
    """Returns a range. `cat_file` of sftp waits for each 32 KiB before it requests the next."""
    if "sftp" not in fs.protocol:
        data: bytes = fs.cat_file(name, start=offset, end=offset + size)
        return data
    with fs.open(name, "rb") as file:
        return b"".join(file.readv([(offset, size)]))


def _joined(root: str, path: bytes) -> str:
    return f"{root}/{path.decode()}" if path else root or "/"


def _told(fs: Any, directory: str, found: list[dict[str, Any]]) -> Iterator[Facts | None]:
    """Yields the facts of the names of a directory; None for one that cannot be shown. Asks for
    links, and for files whose size the listing lacks."""
    for info in found:
        name = str(info["name"]).rstrip("/")
        if name == directory.rstrip("/") and info.get("type") != "directory":
            raise NotFound("not a directory")  # fsspec lists a file as itself
        if name == directory.rstrip("/"):
            continue
        try:
            last = name.rpartition("/")[2].encode()
        except UnicodeEncodeError:  # bytes that are no UTF-8, on this machine's disk
            yield None
            continue
        is_whole = info.get("type") == "directory" or info.get("size") is not None
        if info.get("type") not in ("file", "directory") or info.get("islink") or not is_whole:
            yield _asked(fs, name, last)
        else:
            yield _facts(info, last)


def _asked(fs: Any, name: str, last: bytes) -> Facts | None:
    try:
        return _facts(fs.info(name), last)
    except OSError:  # a link to nothing, or to what may not be read
        return None


def _facts(info: dict[str, Any], name: bytes) -> Facts | None:
    kind = info.get("type")
    if kind not in ("file", "directory"):
        return None
    if kind == "directory":
        return Facts(name, is_directory=True)
    times = (time_ns(info[key]) for key in _TIMES if key in info)
    try:
        mtime_ns = next((found for found in times if found is not None), None)
    except (OverflowError, ValueError):  # infinite, or not a number
        return None
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    size = info.get("size")
    if not isinstance(size, int):
        raise OriginError("the file system does not tell the size of a file")
    return Facts(name, False, size, mtime_ns, clean_etag(version))


def _end(one: tuple[Any, str]) -> None:
    """Ends the connection of an instance, where its class has one."""
    client = getattr(one[0], "client", None)
    if client is not None and hasattr(client, "close"):
        client.close()
