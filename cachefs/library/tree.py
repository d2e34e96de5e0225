"""The names and files below one URL, for Python programs. Errors are OSErrors.

Paths are relative to the URL. A tree holds no connection: those belong to the process, one for each
source. So it may be pickled, and used in any thread and after a fork.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError
from cachefs.core.model import Inode, Kind, NamespaceId
from cachefs.library.cache_file import CacheFile, joined
from cachefs.library.calls import call
from cachefs.library.library import Library, Located
from cachefs.library.open_file import OpenFile
from cachefs.library.os_errors import os_error
from cachefs.library.path_walk import join
from cachefs.library.source import ByteRange, Failed, Source

AHEAD: Final = 64  # directories that a walk lists at once
_GONE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ESTALE))
OnError = Literal["raise", "return"]
PathLike = str | bytes | os.PathLike[str]
_R = TypeVar("_R")
_M = TypeVar("_M", bound=m.Message)


class Entry(NamedTuple):
    """A name below a tree and its inode. `path` is relative to the tree."""

    path: bytes
    inode: Inode

    @property
    def name(self) -> bytes:
        return self.path.rpartition(b"/")[2]

    @property
    def is_file(self) -> bool:
        return self.inode.kind is Kind.FILE

    @property
    def is_directory(self) -> bool:
        return self.inode.kind is Kind.DIRECTORY

    @property
    def size(self) -> int:
        return self.inode.size

    @property
    def ino(self) -> int:
        return self.inode.ino

    @property
    def mtime_ns(self) -> int:
        return self.inode.mtime_ns


class Tree:
    """The names and files below `url`. `library` returns the library of the current process."""

    def __init__(self, url: str, settings: dict[str, Any], library: Callable[[], Library]) -> None:
        self.url = url
        self._settings = settings
        self._library = library
        self._version = -1  # of the table of mounts
        self._place: Located | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.url, self._settings)

    def __repr__(self) -> str:
        return f"cachefs.tree({self.url!r})"

    # ---- whole files and ranges ----

    def read(self, path: PathLike = "") -> bytes:
        """Returns the bytes of a file."""
        data: bytes = self.read_batch([path])[0]
        return data

    def read_batch(self, paths: Iterable[PathLike], on_error: OnError = "raise") -> list[Any]:
        """Returns the bytes of each file, in the order of `paths`. Files that are not complete on
        this node are requested 256 at a time. A file that cannot be read does not stop the others:
        "raise" raises the first error at the end, "return" returns the OSError in its place."""
        asked = [*map(os.fsencode, paths)]
        read = self._with(lambda source, base: source.read_files(_all_below(base, asked)))
        return self._results(asked, read, on_error)

    def read_ranges(
        self,
        ranges: Iterable[tuple[PathLike, int | None, int | None]],
        on_error: OnError = "raise",
    ) -> list[Any]:
        """Returns bytes [start, stop) of each file, as slices have them. Otherwise as
        `read_batch`."""
        asked = [(os.fsencode(path), start, stop) for path, start, stop in ranges]

        def read_all(source: Source, base: bytes) -> list[bytes | Failed]:
            return source.read_all([ByteRange(_below(base, path), *part) for path, *part in asked])

        return self._results([path for path, *_ in asked], self._with(read_all), on_error)

    # ---- open files ----

    def open(self, path: PathLike = "") -> CacheFile:
        """Opens a file, unbuffered."""
        name = os.fsencode(path)
        try:
            file = call(self._opened, name)
        except (CacheFSError, OSError) as err:
            raise os_error(err, self._full(name)) from err
        return CacheFile(file, self.url, name, self._settings)

    def _opened(self, name: bytes) -> OpenFile:
        source, base = self._located()
        return source.open(_below(base, name))

    def open_batch(self, paths: Iterable[PathLike], on_error: OnError = "raise") -> list[Any]:
        """Opens files as `read_batch` reads them. If it raises, it leaves none open."""
        asked = [os.fsencode(path) for path in paths]
        opened = self._with(lambda source, base: source.open_all(_all_below(base, asked)))
        files = [
            CacheFile(one, self.url, path, self._settings) if isinstance(one, OpenFile) else one
            for path, one in zip(asked, opened, strict=True)
        ]
        try:
            return self._results(asked, files, on_error)
        except OSError:
            for file in files:
                if isinstance(file, CacheFile):
                    file.close()
            raise

    # ---- names ----

    def stat(self, path: PathLike = "") -> Entry:
        """Returns the entry of a path. Links are followed."""
        entry: Entry = self.stat_batch([path])[0]
        return entry

    def stat_batch(self, paths: Iterable[PathLike], on_error: OnError = "raise") -> list[Any]:
        """Returns the entry of each path. Otherwise as `read_batch`."""
        asked = [os.fsencode(path) for path in paths]
        found = self._with(lambda source, base: source.resolve_all(_all_below(base, asked)))
        entries = [
            one if isinstance(one, (CacheFSError, OSError)) else Entry(join(path), one.inode)
            for path, one in zip(asked, found, strict=True)
        ]
        return self._results(asked, entries, on_error)

    def list_dir(self, path: PathLike = "") -> list[Entry]:
        """Returns the entries of a directory, by name. Links are listed as themselves."""
        entries: list[Entry] = self._list_all([os.fsencode(path)], "raise")[0]
        return entries

    def walk(self, path: PathLike = "") -> Iterator[Entry]:
        """Yields everything below a directory, each directory before what is in it. Lists up to
        `AHEAD` directories at once. Nothing is in one that is removed meanwhile."""
        listed: dict[bytes, list[Entry] | OSError] = {}
        top = os.fsencode(path)
        todo = [top]
        while todo:
            directory = todo.pop()
            if directory not in listed:
                ahead = [one for one in reversed(todo) if one not in listed]
                wanted = [directory, *ahead[: AHEAD - 1]]
                listed |= zip(wanted, self._list_all(wanted, "return"), strict=True)
            entries = listed.pop(directory)
            if isinstance(entries, OSError):
                if directory == top or entries.errno not in _GONE:
                    raise entries
                continue
            yield from entries
            todo += [one.path for one in reversed(entries) if one.is_directory]

    def _list_all(self, paths: Sequence[bytes], on_error: OnError) -> list[Any]:
        found = self._with(lambda source, base: source.list_all(_all_below(base, paths)))
        listings: list[Any] = []
        for path, one in zip(paths, found, strict=True):
            if isinstance(one, (CacheFSError, OSError)):
                listings.append(one)
            else:
                rows = sorted(one)
                listings.append([Entry(join(path, row.name), row.inode) for row in rows])
        return self._results(paths, listings, on_error)

    # ---- the source ----

    @property
    def namespace(self) -> NamespaceId:
        """The namespace of the inode numbers."""
        return self._with(lambda source, _: source.namespace)

    @property
    def root(self) -> Inode:
        """The inode of `url` itself."""
        return self.stat().inode

    def call(self, body: m.Message, answer: type[_M], fd: int | None = None) -> _M:
        """Sends a request on this process's session of the source, with a copy of `fd` if it is
        one, and returns the reply."""

        def ask(source: Source, _: bytes) -> _M:
            return source.session.ask(body, answer, fd=fd)

        return self._with(ask)

    def close(self) -> None:
        """Forgets the source. The connection stays: others may use it (see `cachefs.close`)."""
        self._place = None

    # ---- inside ----

    def _with(self, use: Callable[[Source, bytes], _R]) -> _R:
        """Returns what a function returns for the source and the path of this tree in it."""
        try:
            used: _R = call(self._used, use)
        except (CacheFSError, OSError) as err:
            raise os_error(err, self.url) from err
        return used

    def _used(self, use: Callable[[Source, bytes], _R]) -> _R:
        source, base = self._located()
        return use(source, base)

    def _located(self) -> Located:
        library = self._library()
        version = library.version
        if self._place is None or version != self._version:
            self._place = library.locate(self.url, self._settings)
            self._version = version
        return self._place

    def _results(
        self, paths: Sequence[bytes], results: Sequence[Any], on_error: OnError
    ) -> list[Any]:
        """Returns the results with errors as OSErrors. Raises the first one, if it is to."""
        bad = [n for n, one in enumerate(results) if isinstance(one, (CacheFSError, OSError))]
        if not bad:
            return [*results]
        translated = [*results]
        for number in bad:
            translated[number] = os_error(results[number], self._full(paths[number]))
        if on_error == "raise":
            raise translated[bad[0]]
        return translated

    def _full(self, path: bytes) -> str:
        return joined(self.url, path)


def _all_below(base: bytes, paths: Sequence[bytes]) -> Sequence[bytes]:
    return [b"%s/%s" % (base, path) for path in paths] if base else paths


def _below(base: bytes, path: bytes) -> bytes:
    return b"%s/%s" % (base, path) if base else path


def _unpickle(url: str, settings: dict[str, Any]) -> Tree:
    from cachefs.library import api

    return api.tree(url, **settings)
