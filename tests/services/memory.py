"""A UFS in memory, for tests: scripted faults, blocked calls, counts. No URL opens it.

It behaves as an object store does: directories exist by the files below them (or by `mkdir`),
listings are ordered or not, reads are bound to an etag. `SyntheticConnector` shows millions of
files without keeping them. Both pass the conformance suite of the real connectors.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import xxhash

from cachefs.core.errors import BadBody, CacheFSError, DeadlineExceeded, NotFound, Stale
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.base import Body, Entry, Page, order_key
from connectors.bodies import read_whole_body
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import RangeRequest
from connectors.pages import Pages

FIRST_MTIME_S: Final = 1_700_000_000
CHUNK_BYTES: Final = 1 << 20
BLOCKED_LIMIT_S: Final = 30.0  # a test that forgets `unblock` fails instead of hanging
_DIRECTORY: Final = Fingerprint(Kind.DIRECTORY)


class _Object(msgspec.Struct, frozen=True):
    data: bytes
    entry: Entry  # its name is the last segment


class _Fault:
    """One scripted failure: the next `times` calls of the verb on the path (None: any)."""

    def __init__(self, verb: str, path: bytes | None, error: CacheFSError, times: int) -> None:
        self.verb, self.path, self.error, self.times = verb, path, error, times

    def hits(self, verb: str, path: bytes) -> bool:
        return self.times > 0 and self.verb == verb and self.path in (None, path)


class Script:
    """What a test wants to happen and what happened: counts, faults and gates, by verb (`check`,
    `stat`, `list_dir`, `page`: a later page of a listing, `read`). Thread-safe."""

    def __init__(self, wait: Callable[[str], None] | None = None) -> None:
        self.calls: Counter[str] = Counter()
        self.calls_by_path: Counter[tuple[str, bytes]] = Counter()
        self.ranges: deque[tuple[bytes, int, int]] = deque(maxlen=100_000)  # path, offset, size
        self.body_bytes = 0
        self._wait = wait
        self._faults: list[_Fault] = []
        self._cuts: dict[bytes, list[int]] = {}
        self._closed_gates: set[str] = set()
        self._waiting: Counter[str] = Counter()
        self._changed = threading.Condition()

    def fail(self, verb: str, path: bytes | None, error: CacheFSError, times: int = 1) -> None:
        """The next `times` calls of `verb` on `path` (None: any path) raise `error`."""
        with self._changed:
            self._faults.append(_Fault(verb, path, error, times))

    def cut(self, path: bytes, after_bytes: int, times: int = 1) -> None:
        """The next `times` bodies of `path` end with BadBody after so many right bytes."""
        with self._changed:
            self._cuts.setdefault(path, []).extend([after_bytes] * times)

    def block(self, verb: str) -> None:
        """Calls of `verb` wait, at most 30 s, until `unblock`."""
        with self._changed:
            self._closed_gates.add(verb)

    def unblock(self, verb: str | None = None) -> None:
        """Lets the calls of `verb` (None: of all verbs) go on."""
        with self._changed:
            self._closed_gates -= {verb} if verb else set(self._closed_gates)
            self._changed.notify_all()

    def wait_blocked(self, verb: str, count: int = 1, timeout_s: float = 30.0) -> None:
        """Returns when `count` calls of `verb` wait. Raises DeadlineExceeded."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting[verb] >= count, timeout_s):
                raise DeadlineExceeded(f"{self._waiting[verb]} of {count} calls of {verb} wait")

    def enter(self, verb: str, path: bytes) -> None:
        """Counts a call, waits at its gate, raises its fault."""
        with self._changed:
            self.calls[verb] += 1
            self.calls_by_path[verb, path] += 1
            self._pass_gate(verb)
            fault = next((f for f in self._faults if f.hits(verb, path)), None)
            if fault is not None:
                fault.times -= 1
        if self._wait is not None:
            self._wait(verb)
        if fault is not None:
            raise fault.error

    def _pass_gate(self, verb: str) -> None:
        self._waiting[verb] += 1
        self._changed.notify_all()
        passed = self._changed.wait_for(lambda: verb not in self._closed_gates, BLOCKED_LIMIT_S)
        self._waiting[verb] -= 1
        if not passed:
            raise DeadlineExceeded(f"{verb} was blocked for {BLOCKED_LIMIT_S:g} s")

    def take_cut(self, path: bytes) -> int | None:
        with self._changed:
            cuts = self._cuts.get(path)
            return cuts.pop(0) if cuts else None

    def read_chunk(self, size: int) -> None:
        with self._changed:
            self.body_bytes += size


class MemoryBody:
    """Bytes of one object in chunks of 1 MiB; a cut makes it end early with BadBody."""

    def __init__(self, data: memoryview, path: bytes, script: Script) -> None:
        self._data = data
        self._path = path
        self._script = script
        self._closed = False

    def __iter__(self) -> Iterator[memoryview]:
        cut = self._script.take_cut(self._path)
        end = len(self._data) if cut is None else min(cut, len(self._data))
        for start in range(0, end, CHUNK_BYTES):
            if self._closed:
                return
            chunk = self._data[start : min(start + CHUNK_BYTES, end)]
            self._script.read_chunk(len(chunk))
            yield chunk
        if cut is not None:
            raise BadBody(f"the body ended after {end} bytes", path=_shown(self._path))

    def close(self) -> None:
        self._closed = True


class MemoryConnector:
    """A tree in memory. `files` maps a path to its bytes; every `put` moves the mtime by 1 s."""

    def __init__(
        self,
        files: dict[bytes, bytes] | None = None,
        *,
        ordered: bool = True,
        page_entries: int = 1000,
        posix: bool = False,
        wait: Callable[[str], None] | None = None,
        seed: int = 0,
    ) -> None:
        """`wait(verb)` is called in each call, for latency. `seed` shuffles unordered listings."""
        self.script = Script(wait)
        self._page_entries = page_entries
        self._ordered = ordered
        self._posix = posix
        self._seed = seed
        self._lock = threading.Lock()
        self._objects: dict[bytes, _Object] = {}
        self._children: dict[bytes, dict[bytes, bool]] = {b"": {}}  # name -> is a directory
        self._kept: set[bytes] = {b""}  # directories that exist without children
        self._next_mtime_s = FIRST_MTIME_S
        self._names_changed: dict[bytes, int] = {}  # by directory, ns
        for path, data in (files or {}).items():
            self.put(path, data)

    # What a test does to the origin.

    def put(
        self, path: bytes, data: bytes, *, mode: int = -1, uid: int = -1, gid: int = -1
    ) -> Fingerprint:
        """Creates or replaces a file; returns its fingerprint."""
        etag = xxhash.xxh3_128_hexdigest(data)
        found = self._add(path, data, Kind.FILE, etag, Entry(b"", _DIRECTORY, mode, uid, gid))
        return found.fingerprint

    def symlink(self, path: bytes, target: bytes) -> Fingerprint:
        """Creates or replaces a symbolic link."""
        like = Entry(b"", _DIRECTORY, 0o777, 0, 0, target)
        return self._add(path, b"", Kind.SYMLINK, "", like, len(target)).fingerprint

    def mkdir(self, path: bytes) -> None:
        """A directory that exists without files below it."""
        with self._lock:
            self._kept.add(path)
            self._children.setdefault(path, {})
            self._link_parents(path, is_directory=True)

    def delete(self, path: bytes) -> None:
        """Removes a file, or a directory with everything below. Raises KeyError."""
        with self._lock:
            below = [p for p in self._objects if p == path or p.startswith(path + b"/")]
            if not below and path not in self._kept:
                raise KeyError(path)
            for found in below:
                del self._objects[found]
                self._unlink(found)
            gone = {d for d in self._kept if d and (d == path or d.startswith(path + b"/"))}
            self._kept -= gone
            for directory in sorted(gone, key=len, reverse=True):
                self._children.pop(directory, None)
                self._unlink(directory)

    def files(self) -> list[bytes]:
        """Returns the paths of all files that are not hidden, in order."""
        with self._lock:
            return sorted(path for path in self._objects if path not in self._children)

    def _add(
        self, path: bytes, data: bytes, kind: Kind, etag: str, like: Entry, size: int | None = None
    ) -> Entry:
        if not path or not keys.visible_path(path):
            raise ValueError(f"not a path that can be shown: {path!r}")
        with self._lock:
            self._next_mtime_s += 1
            fingerprint = Fingerprint(
                kind, len(data) if size is None else size, self._next_mtime_s * 10**9, etag
            )
            entry = msgspec.structs.replace(
                like, name=path.rpartition(b"/")[2], fingerprint=fingerprint
            )
            self._objects[path] = _Object(data, entry)
            self._link_parents(path, is_directory=path in self._children)
            return entry

    def _link_parents(self, path: bytes, is_directory: bool) -> None:
        while path:
            parent, _, name = path.rpartition(b"/")
            children = self._children.setdefault(parent, {})
            if name not in children or is_directory > children[name]:
                self._names_changed[parent] = self._next_mtime_s * 10**9
            children[name] = is_directory or children.get(name, False)
            path, is_directory = parent, True

    def _unlink(self, path: bytes) -> None:
        while path and path not in self._kept and not self._children.get(path):
            self._children.pop(path, None)
            parent, _, name = path.rpartition(b"/")
            self._next_mtime_s += 1
            self._names_changed[parent] = self._next_mtime_s * 10**9
            if path in self._objects:
                self._children[parent][name] = False
                return
            self._children.get(parent, {}).pop(name, None)
            path = parent

    # What a test asks of it: see `Script`.

    @property
    def calls(self) -> Counter[str]:
        return self.script.calls

    @property
    def body_bytes(self) -> int:
        return self.script.body_bytes

    def fail(self, verb: str, path: bytes | None, error: CacheFSError, times: int = 1) -> None:
        self.script.fail(verb, path, error, times)

    def cut(self, path: bytes, after_bytes: int, times: int = 1) -> None:
        self.script.cut(path, after_bytes, times)

    def block(self, verb: str) -> None:
        self.script.block(verb)

    def unblock(self, verb: str | None = None) -> None:
        self.script.unblock(verb)

    def wait_blocked(self, verb: str, count: int = 1, timeout_s: float = 30.0) -> None:
        self.script.wait_blocked(verb, count, timeout_s)

    # The connector.

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            ordered_listings=self._ordered,
            directories=False,
            posix_attributes=self._posix,
            symlinks=True,
            identity=Identity.CONTENT,
            refuses_other_versions=True,
            mtime_precision_ns=10**9,
            directory_times=True,
        )

    def check(self) -> None:
        self.script.enter("check", b"")

    def stat(self, path: bytes) -> Entry:
        self.script.enter("stat", path)
        with self._lock:
            return self._entry(path)

    def _entry(self, path: bytes) -> Entry:
        if path in self._children:
            changed_ns = self._names_changed.get(path, FIRST_MTIME_S * 10**9)
            return Entry(path.rpartition(b"/")[2], _DIRECTORY, names_changed_ns=changed_ns)
        found = self._objects.get(path)
        if found is None:
            raise NotFound("no such file or directory", path=_shown(path))
        return found.entry

    def list_dir(self, path: bytes) -> Iterator[Page]:
        return self._pages("list_dir", path, lambda: self._list_dir(path))

    def _list_dir(self, path: bytes) -> tuple[list[Entry], int]:
        ordered = self._ordered_names(path)
        prefix = path + b"/" if path else b""
        hidden = sum(prefix + n in self._objects for n, is_dir in self._names(path) if is_dir)
        return [self._entry(prefix + name) for _, name in ordered], hidden

    def _names(self, path: bytes) -> list[tuple[bytes, bool]]:
        return list(self._children.get(path, {}).items())

    def _ordered_names(self, path: bytes) -> list[tuple[bytes, bytes]]:
        return sorted((order_key(name, is_dir), name) for name, is_dir in self._names(path))

    def _pages(
        self, verb: str, path: bytes, look: Callable[[], tuple[list[Entry], int]]
    ) -> Iterator[Page]:
        """Pages of what was there at the first one; a later one may fail as the verb `page`."""
        entries: list[Entry] = []

        def fetch(position: int | None) -> tuple[Page, int | None]:
            start = position or 0
            self.script.enter(verb if not start else "page", path)
            hidden = 0
            if not start:
                with self._lock:
                    entries[:], hidden = look()
                if not self._ordered:
                    random.Random(self._seed).shuffle(entries)
            end = start + self._page_entries
            return Page(entries[start:end], hidden), end if end < len(entries) else None

        return Pages(fetch)

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        self.script.enter("read", path)
        self.script.ranges.append((path, offset, size))
        if offset < 0 or size < 0 or offset + size > version.size:
            raise ValueError(f"{size} bytes at {offset} of a file of {version.size}")
        with self._lock:
            found = self._objects.get(path)
        if found is None:
            raise NotFound("no such file", path=_shown(path))
        if found.entry.fingerprint != version:
            raise Stale("another version now", path=_shown(path))
        return MemoryBody(memoryview(found.data)[offset : offset + size], path, self.script)

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return read_whole_body(self.read(path, 0, version.size, version))

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        return None

    def close(self) -> None:
        self.script.unblock()


class SyntheticConnector:
    """`directories` directories `d000000` of `files_per_directory` files `f000000` each, all of
    `file_bytes` bytes, computed when asked for. Listings are ordered."""

    MTIME_NS: Final = FIRST_MTIME_S * 10**9
    page_entries: Final = 1000

    def __init__(
        self,
        *,
        directories: int,
        files_per_directory: int,
        file_bytes: int = 110 << 10,
        wait: Callable[[str], None] | None = None,
    ) -> None:
        self.script = Script(wait)
        self.directories = directories
        self.files_per_directory = files_per_directory
        self.file_bytes = file_bytes
        self._file = Fingerprint(Kind.FILE, file_bytes, self.MTIME_NS, "synthetic")

    @property
    def calls(self) -> Counter[str]:
        return self.script.calls

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            ordered_listings=True,
            directories=False,
            posix_attributes=False,
            symlinks=False,
            identity=Identity.FIXED,
            refuses_other_versions=True,
            mtime_precision_ns=10**9,
        )

    def check(self) -> None:
        self.script.enter("check", b"")

    def stat(self, path: bytes) -> Entry:
        self.script.enter("stat", path)
        return self._entry(path)

    def _entry(self, path: bytes) -> Entry:
        if not path:
            return Entry(b"", _DIRECTORY)
        directory, _, name = path.partition(b"/")
        if _number(directory, b"d") >= self.directories:
            raise NotFound("no such file or directory", path=_shown(path))
        if not name:
            return Entry(directory, _DIRECTORY)
        if _number(name, b"f") >= self.files_per_directory:
            raise NotFound("no such file or directory", path=_shown(path))
        return Entry(name, self._file)

    def list_dir(self, path: bytes) -> Iterator[Page]:
        self.script.enter("list_dir", path)
        if not path:
            every = (Entry(b"d%06d" % n, _DIRECTORY) for n in range(self.directories))
        elif b"/" not in path and _number(path, b"d") < self.directories:
            every = (Entry(b"f%06d" % n, self._file) for n in range(self.files_per_directory))
        else:
            return
        yield from self._pages(every)

    def _pages(self, entries: Iterator[Entry]) -> Iterator[Page]:
        page: list[Entry] = []
        for entry in entries:
            page.append(entry)
            if len(page) == self.page_entries:
                yield Page(page)
                page = []
        if page:
            yield Page(page, last=True)

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        self.script.enter("read", path)
        if self._entry(path).fingerprint != version:
            raise Stale("another version now", path=_shown(path))
        return MemoryBody(memoryview(self.data(path))[offset : offset + size], path, self.script)

    def data(self, path: bytes) -> bytes:
        """The bytes of a file: its path, repeated."""
        return (path * (self.file_bytes // len(path) + 1))[: self.file_bytes]

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return read_whole_body(self.read(path, 0, version.size, version))

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        return None

    def close(self) -> None:
        self.script.unblock()


def _number(name: bytes, letter: bytes) -> int:
    """The number in `f000012`; for any other name one that no tree has."""
    digits = name[1:]
    if name[:1] == letter and digits.isdigit() and name == letter + b"%06d" % int(digits):
        return int(digits)
    return 1 << 62


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
