"""The file systems `cachefs` and `cachefs+SCHEME` of fsspec, for pandas, Hugging Face datasets and
others that read by it. Registered by entry points.

    fsspec.filesystem("cachefs")      paths: /mnt/x/path on a mount, HOST:PORT/path of a cluster
    fsspec.filesystem("cachefs+s3")   paths: bucket/path

Storage options are the settings of `cachefs mount`, and `source` (see `cachefs.tree`). Read-only.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from cachefs.core.errors import BadConfig, CacheFSError, ReadOnly
from cachefs.core.install import install_command
from cachefs.library import api
from cachefs.library.cache_file import CacheFile
from cachefs.library.calls import call
from cachefs.library.os_errors import os_error
from cachefs.library.places import is_below
from cachefs.library.storage_options import settings_of
from cachefs.library.tree import Entry, Tree

try:
    from fsspec.spec import AbstractFileSystem
except ModuleNotFoundError as err:
    err.add_note(f"cachefs.fsspec needs it: {install_command('fsspec')}")
    raise

MOST_TREES: Final = 256  # of one file system: mounts, buckets, folders behind links


class CacheFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Paths on mounts and of clusters."""

    protocol: ClassVar[str] = "cachefs"
    async_impl = False

    def __init__(self, *args: Any, **storage_options: Any) -> None:
        super().__init__(*args, **storage_options)
        try:
            self._settings = settings_of(storage_options)
        except BadConfig as err:
            raise os_error(err, f"{self.protocol}://") from err
        self._trees: dict[str, Tree] = {}  # by what `_split` returns

    # ---- paths ----

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path).removeprefix(cls.protocol + "://")
        return path.rstrip("/") or cls.root_marker

    def _split(self, path: str) -> tuple[Tree, str]:
        """Returns the tree of a path and the path below it."""
        top, rest = self._top(path)
        return self._tree(top), rest

    def _tree(self, top: str) -> Tree:
        tree = self._trees.get(top)
        if tree is None:
            if len(self._trees) >= MOST_TREES:
                self._trees.clear()
            tree = self._trees[top] = api.tree(top, **self._settings)
        return tree

    @staticmethod
    def _top(path: str) -> tuple[str, str]:
        """Returns the URL whose tree has a path, and the path below it. Some programs lose a slash
        of `cachefs:///mnt/x`: without a port, `mnt/x` is a path on a mount where there is one."""
        host, _, rest = path.partition("/")
        local = path if not host else "" if ":" in host else f"/{path}"
        if local and (mountpoint := _mountpoint_of(local)):
            return mountpoint, local[len(mountpoint) + 1 :]
        if not host:  # links may lead to a mount
            folder, _, name = path.rpartition("/")
            return folder or "/", name
        return f"cachefs://{host}", rest

    # ---- names ----

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        tree, below = self._split(path)
        return _info_of(path, tree.stat(below))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        tree, below = self._split(path)
        entry = tree.stat(below)
        if entry.is_directory:
            found = [_info_of(_joined(path, one.name), one) for one in tree.list_dir(below)]
        else:
            found = [_info_of(path, entry)]
        return found if detail else [one["name"] for one in found]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        if maxdepth is not None:
            return super().find(path, maxdepth, withdirs, detail, **kwargs)
        path = self._strip_protocol(path)
        found = {one["name"]: one for one in self._below(path, withdirs)}
        names = sorted(found)
        return {name: found[name] for name in names} if detail else names

    def _below(self, path: str, withdirs: bool) -> Iterator[dict[str, Any]]:
        tree, below = self._split(path)
        below = below.strip("/")  # entries have their path without a slash before it
        try:
            entry = tree.stat(below)
        except (FileNotFoundError, NotADirectoryError):
            return
        if entry.is_file:
            yield _info_of(path, entry)
            return
        if withdirs:
            yield _info_of(path, entry)
        prefix = len(os.fsencode(below)) + 1 if below else 0
        for one in tree.walk(below):
            if withdirs or not one.is_directory:
                yield _info_of(_joined(path, one.path[prefix:]), one)

    def created(self, path: str) -> datetime:
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        tree, below = self._split(self._strip_protocol(path))
        return datetime.fromtimestamp(tree.stat(below).mtime_ns / 1e9, UTC)

    def ukey(self, path: str) -> str:
        """Returns an identity of a file's content."""
        tree, below = self._split(self._strip_protocol(path))
        inode = tree.stat(below).inode
        return f"{inode.ino}-{inode.version}-{inode.nonce}"

    # ---- bytes ----

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb" and compression is None:  # the usual case, in half of the calls
            return self._open(self._strip_protocol(path))
        return super().open(path, mode, block_size, cache_options, compression, **kwargs)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **_: Any,
    ) -> CacheFile:
        """Returns an unbuffered file: the bytes are on this node, or requested a page at a time."""
        if mode != "rb":
            raise _read_only(path)
        tree, below = self._split(path)
        return tree.open(below)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        tree, below = self._split(self._strip_protocol(path))
        data: bytes = tree.read_ranges([(below, start, end)])[0]
        return data

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Returns bytes [start, end) of each path; all requests are in flight together."""
        starts, ends = _for_each(starts, len(paths)), _for_each(ends, len(paths))
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("paths, starts and ends differ in length")
        return self._read([*zip(paths, starts, ends, strict=True)], on_error)

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """Returns the bytes of a file, or a dictionary of those of several."""
        paths = self.expand_path(path, recursive=recursive)
        is_one = (
            isinstance(path, str) and len(paths) == 1 and paths[0] == self._strip_protocol(path)
        )
        if recursive or not is_one:
            paths = [one for one in paths if not (recursive and self.isdir(one))]
            kind = "return" if on_error == "omit" else on_error
            got = dict(zip(paths, self._read([(p, None, None) for p in paths], kind), strict=True))
            if on_error == "omit":
                got = {name: one for name, one in got.items() if not isinstance(one, OSError)}
            return got
        return self.cat_file(paths[0])

    def _read(
        self, ranges: Sequence[tuple[str, int | None, int | None]], on_error: str
    ) -> list[Any]:
        """Reads ranges, those of one tree in one batch."""
        by_tree: dict[Tree, list[tuple[int, str, int | None, int | None]]] = {}
        for number, (path, start, end) in enumerate(ranges):
            tree, below = self._split(self._strip_protocol(path))
            by_tree.setdefault(tree, []).append((number, below, start, end))
        results: list[Any] = [None] * len(ranges)
        for tree, some in by_tree.items():
            asked = [(below, start, end) for _, below, start, end in some]
            got = tree.read_ranges(asked, "return" if on_error == "return" else "raise")
            for (number, *_), one in zip(some, got, strict=True):
                results[number] = one
        return results

    # ---- what a read-only file system refuses ----

    def mkdir(self, path: str, *_: Any, **__: Any) -> None:
        raise _read_only(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not (exist_ok and self.isdir(path)):
            raise _read_only(path)

    def rmdir(self, path: str) -> None:
        raise _read_only(path)

    def _rm(self, path: str) -> None:
        raise _read_only(path)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        raise _read_only(path2)


class _SourceFileSystem(CacheFileSystem):
    """Paths of sources: `bucket/path` of `cachefs+SCHEME://bucket/path`."""

    def _split(self, path: str) -> tuple[Tree, str]:
        top, rest = _root_of_source(self.protocol, path)
        source = str(self._settings.get("source", "")).rstrip("/")
        url = f"{self.protocol}://{path}"
        if source and is_below(url, f"cachefs+{source}"):
            top, rest = f"cachefs+{source}", url.removeprefix(f"cachefs+{source}").lstrip("/")
        return self._tree(top), rest


class _BucketFileSystem(_SourceFileSystem):
    """Paths that begin with a bucket or an account: a slash before it means nothing."""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped.lstrip("/") if isinstance(stripped, str) else stripped


class S3CacheFileSystem(_BucketFileSystem):
    protocol = "cachefs+s3"


class GsCacheFileSystem(_BucketFileSystem):
    protocol = "cachefs+gs"


class AzCacheFileSystem(_BucketFileSystem):
    protocol = "cachefs+az"


class HdfsCacheFileSystem(_SourceFileSystem):
    protocol = "cachefs+hdfs"


class LocalCacheFileSystem(_SourceFileSystem):
    protocol = "cachefs+file"


def _mountpoint_of(path: str) -> str:
    try:
        return call(api.library().mountpoint_of, path)
    except CacheFSError as err:
        raise os_error(err, path) from err


def _for_each(offsets: Any, count: int) -> list[int | None]:
    """Returns one offset for each path: those given, as in an array of numpy, or the one given."""
    found = [*offsets] if isinstance(offsets, Iterable) else [offsets] * count
    return [None if offset is None else operator.index(offset) for offset in found]


def _info_of(name: str, entry: Entry) -> dict[str, Any]:
    inode = entry.inode
    return {
        "name": name,
        "size": 0 if entry.is_directory else inode.size,  # as of other stores: sums need a number
        "type": "directory" if entry.is_directory else "file" if entry.is_file else "link",
        "mtime": inode.mtime_ns / 1e9,
        "ino": inode.ino,
        "etag": inode.etag,
    }


def _joined(path: str, below: bytes) -> str:
    return f"{path}/{os.fsdecode(below)}" if path else os.fsdecode(below)


def _root_of_source(protocol: str, path: str) -> tuple[str, str]:
    """Returns the URL of the bucket or container of a path, and the path below it."""
    count = 2 if protocol == "cachefs+az" else 1
    parts = path.split("/", count)
    top = "/".join(parts[:count])
    return f"{protocol}://{top}", parts[count] if len(parts) > count else ""


def _read_only(path: str) -> OSError:
    return os_error(ReadOnly("the file system is read-only"), path)
