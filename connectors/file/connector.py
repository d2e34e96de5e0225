"""The reading half of the connector of a local (or NFS) directory: `file:///path`. It never leaves
its root: it opens the directories of a path one after the other, without following symbolic links.

The etag of a file is its inode number (0 on a FUSE file system, which may change the number) and
its ctime. `cp -p`, `rsync -t` and `tar x` set the mtime of the files they write; no program sets
the ctime, so every change of a file changes it. Two changes within one grain of the file system's
clock may get the same ctime. A read therefore waits until the last change is older than that grain.
Every later change then gets another ctime, which the comparison after each read detects.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from cachefs.core import errors
from cachefs.core.errors import BadBody, CacheFSError, NotFound, Stale
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.base import Body, Entry, Page, check_range, order_key
from connectors.bodies import read_whole_body
from connectors.bounds import clamped_ns
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import RangeRequest
from connectors.inode_numbers import has_stable_inode_numbers
from connectors.pages import Pages

CHUNK_BYTES: Final = 1 << 20
PAGE_ENTRIES: Final = 1000
NS: Final = 10**9
# Before Linux 6.13 a change is stamped with the time of the last timer tick: every 10 ms at most.
TICK_NS: Final = 20_000_000
# Some file systems, and NFS servers on them, store whole seconds (ext3), or even ones (FAT).
COARSE_NS: Final = 2 * NS
_DIRECTORY: Final = Fingerprint(Kind.DIRECTORY)
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: Final = {
    stat.S_IFREG: Kind.FILE,
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFLNK: Kind.SYMLINK,
}
TEMPORARY: Final = b".cachefs-tmp-"  # how the names of files that are being written start; hidden
READING: Final = Capabilities(
    ordered_listings=True,
    directories=True,
    posix_attributes=True,
    symlinks=True,
    identity=Identity.CONTENT,
    refuses_other_versions=False,
    mtime_precision_ns=1,
    directory_times=True,
)
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})
_OF_WRITES: Final[dict[int | None, type[CacheFSError]]] = {
    errno.EDQUOT: errors.NoSpace,
    errno.EEXIST: errors.AlreadyExists,
    errno.EISDIR: errors.IsADirectory,
    errno.ENOSPC: errors.NoSpace,
    errno.ENOTEMPTY: errors.NotEmpty,
    errno.EROFS: errors.ReadOnly,
}
_PASSING: Final = frozenset({errno.EAGAIN, errno.EIO, errno.ESTALE})
# Of this machine: others may get at the files.
_CUT: Final = frozenset(
    {
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
    }
)


class FileConnector:
    """A directory tree. Special files (sockets, devices, pipes) are counted as hidden; files that
    are being written are not there."""

    def __init__(
        self,
        root: str | bytes,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`root`: an absolute path, which may be a symbolic link. `clock_ns` is the wall clock."""
        self._root = os.fsencode(root)
        self._clock_ns = clock_ns
        self._sleep = sleep

    @property
    def capabilities(self) -> Capabilities:
        return READING

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        return None

    def close(self) -> None:
        """Keeps nothing open between calls, so has nothing to close."""

    def check(self) -> None:
        with self._classified(b""):
            directory = self._open_root()
            try:
                with os.scandir(directory) as found:
                    next(found, None)
            finally:
                os.close(directory)

    def stat(self, path: bytes) -> Entry:
        with self._classified(path):
            if not path:
                return self._stat_root()
            with self._parent(path) as (directory, name):
                entry = _entry(directory, name)
        if entry is None:
            raise NotFound("a special file is not shown", path=self._shown(path))
        return entry

    def list_dir(self, path: bytes) -> Iterator[Page]:
        def fetch(listing: _Directory | None) -> tuple[Page, _Directory | None]:
            with self._classified(path):
                listing = listing or _Directory(self._open_directory(path))
                page = Page(*listing.take(PAGE_ENTRIES))
            return page, None if listing.done else listing

        return Pages(fetch)

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        check_range(offset, size, version)
        with self._classified(path), self._parent(path) as (directory, name):
            descriptor = open_file(directory, name, self._shown(path))
        body = FileBody(descriptor, offset, size, version, self._shown(path))
        try:
            wait_ns = ctime_wait_ns(body.compare(), self._clock_ns())
            if wait_ns and size:
                self._sleep(wait_ns / NS)
        except CacheFSError:
            body.close()
            raise
        return body

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return read_whole_body(self.read(path, 0, version.size, version))

    def _stat_root(self) -> Entry:
        found = os.stat(self._root)
        if not stat.S_ISDIR(found.st_mode):
            raise NotFound("not a directory", path=self._shown(b""))
        return _entry_of(b"", _DIRECTORY, found)

    def _open_root(self) -> int:
        return os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _open_directory(self, path: bytes) -> int:
        """Returns a descriptor of a directory below the root, which the caller closes."""
        if not keys.visible_path(path):
            raise NotFound("no such directory", path=self._shown(path))
        directory = self._open_root()
        for name in path.split(b"/") if path else ():
            above = directory
            try:
                directory = open_below(above, name)
            finally:
                os.close(above)
        return directory

    @contextlib.contextmanager
    def _parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields a descriptor of a path's directory, open in the block, and the last segment."""
        above, _, name = path.rpartition(b"/")
        if not name or not keys.visible_path(path) or name.startswith(TEMPORARY):
            raise NotFound("no such file or directory", path=self._shown(path))
        directory = self._open_directory(above)
        try:
            yield directory, name
        finally:
            os.close(directory)

    def _shown(self, path: bytes) -> str:
        return os.path.join(self._root, path).decode("utf-8", "backslashreplace").rstrip("/")

    @contextlib.contextmanager
    def _classified(self, path: bytes) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise classify(error, self._shown(path)) from error


def classify(error: OSError, path: str) -> CacheFSError:
    """Returns the typed error of a failed system call."""
    cause = os.strerror(error.errno or errno.EIO).lower()
    if error.errno in _GONE:
        return errors.NotFound(cause, path=path)
    if error.errno in _OF_WRITES:
        return _OF_WRITES[error.errno](cause, path=path)
    if error.errno in _DENIED:
        return errors.AccessDenied(cause, path=path)
    if error.errno in _PASSING:
        return errors.Unavailable(cause, path=path)
    if error.errno in _CUT:
        return errors.Unreachable(cause, path=path)
    return errors.OriginError(cause, path=path)


def open_below(directory: int, name: bytes) -> int:
    """Returns a descriptor of a directory in a directory, which is no symbolic link."""
    return os.open(name, _OPEN_DIRECTORY, dir_fd=directory)


def open_file(directory: int, name: bytes, path: str) -> int:
    try:
        return os.open(name, _OPEN_FILE, dir_fd=directory)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Stale("the file is a symbolic link now", path=path) from error


def ctime_wait_ns(ctime_ns: int, now_ns: int) -> int:
    """Returns the time during which another change could still get this ctime; 0: it has passed. A
    ctime of whole seconds is assumed to be of a file system with that precision."""
    grain_ns = TICK_NS if ctime_ns % NS else COARSE_NS
    age_ns = now_ns - ctime_ns
    return grain_ns - age_ns if abs(age_ns) < grain_ns else 0


def fingerprint_of(found: os.stat_result) -> Fingerprint | None:
    """Returns the fingerprint, or None for a special file. A symbolic link needs no etag, since its
    target is compared."""
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        return None
    if kind is Kind.DIRECTORY:
        return _DIRECTORY
    etag = ""
    if kind is Kind.FILE:
        number = found.st_ino if has_stable_inode_numbers(found.st_dev) else 0
        etag = f"{number:x}-{found.st_ctime_ns:x}"
    return Fingerprint(kind, found.st_size, clamped_ns(found.st_mtime_ns), etag)


def is_version(found: Fingerprint | None, version: Fingerprint) -> bool:
    """Returns whether the fingerprints match. A version that an earlier release stored has no etag:
    then only length and mtime are compared."""
    if found is not None and not version.etag:
        found = msgspec.structs.replace(found, etag="")
    return found == version


def _entry(directory: int, name: bytes) -> Entry | None:
    """Returns the entry of a name in a directory; None for a special file."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    fingerprint = fingerprint_of(found)
    if fingerprint is None:
        return None
    target = b""
    if fingerprint.kind is Kind.SYMLINK:
        target = os.readlink(name, dir_fd=directory)
    return _entry_of(name, fingerprint, found, target)


def _entry_of(
    name: bytes, fingerprint: Fingerprint, found: os.stat_result, target: bytes = b""
) -> Entry:
    changed_ns = clamped_ns(found.st_ctime_ns) if fingerprint.kind is Kind.DIRECTORY else 0
    mode = stat.S_IMODE(found.st_mode)
    return Entry(name, fingerprint, mode, found.st_uid, found.st_gid, target, changed_ns)


class _Directory:
    """An open directory: its sorted names and the position among them. Owns the descriptor. A name
    that was removed since is skipped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._hidden = 0
        self._next = 0
        self._entries: list[Entry] = []  # of an incomplete page: kept when an error is raised
        try:
            self._keys = sorted(self._scan())
        except BaseException:
            self.close()
            raise

    def _scan(self) -> Iterator[bytes]:
        with os.scandir(self.descriptor) as found:
            for item in found:
                name = os.fsencode(item.name)
                if name.startswith(TEMPORARY):
                    continue
                is_directory = item.is_dir(follow_symlinks=False)
                if is_directory or item.is_file(follow_symlinks=False) or item.is_symlink():
                    yield order_key(name, is_directory)
                else:
                    self._hidden += 1

    @property
    def done(self) -> bool:
        return self._next >= len(self._keys)

    def _next_entry(self) -> Entry | None:
        """Returns the entry of the next name and advances; None if the name was removed, has
        changed its kind or is hidden."""
        key = self._keys[self._next]
        name = key.removesuffix(b"/")
        entry = None
        try:
            entry = _entry(self.descriptor, name)
        except FileNotFoundError:
            pass
        except OSError as error:
            if not self._is_of_one_name(error):
                raise
            self._hidden += 1
        self._next += 1
        return entry if entry and _same_kind(entry, key) else None

    def _is_of_one_name(self, error: OSError) -> bool:
        """Returns whether `stat` fails for this name only, as for a dead mount. Raises OSError if
        the directory itself cannot be searched."""
        if error.errno not in (errno.EACCES, errno.ENOTCONN):
            return False
        os.stat(b".", dir_fd=self.descriptor)
        return True

    def take(self, count: int) -> tuple[list[Entry], int]:
        """Returns the next entries, at most `count`, and the hidden names not yet reported. Closes
        the directory at the end."""
        while not self.done and len(self._entries) < count:
            entry = self._next_entry()
            if entry:
                self._entries.append(entry)
        entries, self._entries = self._entries, []
        if self.done:
            self.close()
        hidden, self._hidden = self._hidden, 0
        return entries, hidden

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def _same_kind(entry: Entry, key: bytes) -> bool:
    """Returns whether the entry has the kind of its key. If a file became a directory, or the
    reverse, its place in the order differs."""
    return (entry.fingerprint.kind is Kind.DIRECTORY) == key.endswith(b"/")


class FileBody:
    """Bytes of one open file. Each chunk is a view of one reused buffer, valid until the next. The
    version is compared after each `pread`, before its bytes are yielded."""

    def __init__(
        self, descriptor: int, offset: int, size: int, version: Fingerprint, path: str
    ) -> None:
        self._descriptor = descriptor
        self._offset = offset
        self._left = size
        self._version = version
        self._path = path
        self._lock = threading.Lock()
        self._is_reading = False  # if True, only the reading thread closes the descriptor
        self._is_closed = False

    def compare(self) -> int:
        """Returns the ctime of the open file, in ns. Raises Stale for another version."""
        try:
            found = os.fstat(self._descriptor)
        except OSError as error:
            raise classify(error, self._path) from error
        if not is_version(fingerprint_of(found), self._version):
            raise Stale("the file is another version now", path=self._path)
        return found.st_ctime_ns

    def __iter__(self) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, self._left)))
        try:
            while self._left:
                with self._reading() as may_read:
                    if not may_read:
                        return
                    count = self._read(buffer[: self._left])
                yield buffer[:count]
        finally:
            self.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[bool]:
        """Yields False if the body was closed. Keeps the descriptor open in the block."""
        with self._lock:
            self._is_reading = may_read = not self._is_closed
        try:
            yield may_read
        finally:
            with self._lock:
                self._is_reading = False
                is_closed = self._is_closed
            if is_closed:
                self._close_descriptor()

    def _read(self, buffer: memoryview) -> int:
        try:
            count = os.preadv(self._descriptor, [buffer], self._offset)
        except OSError as error:
            raise classify(error, self._path) from error
        self.compare()
        if not count:
            raise BadBody(f"the file ended {self._left} bytes early", path=self._path)
        self._offset += count
        self._left -= count
        return count

    def close(self) -> None:
        """Closes the body without blocking. If another thread is in a read, which may hang with the
        disk, that thread closes the descriptor when its read ends."""
        with self._lock:
            self._is_closed = True
            is_reading = self._is_reading
        if not is_reading:
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()
