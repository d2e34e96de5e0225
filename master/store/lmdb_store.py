"""A metadata store in one LMDB environment: durable commits, one writer, no server.

The store owns its directory (0700) with `data.mdb` and `owner.lock`. It holds a flock on
`owner.lock` as long as it is open, so that two servers never write one namespace.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import lmdb

from cachefs.core.errors import BadConfig, CacheFSError, InUse, NoSpace, Unavailable
from cachefs.core.lock_table import LOCK_TABLE, lock_table_in_memory
from master.store.base import Reader, Table, Writer
from master.store.group import GroupCommit

T = TypeVar("T")

MAP_BYTES: Final = 1 << 40  # sparse: address space, not disk
MIN_MAP_BYTES: Final = 1 << 30
NO_ROOM: Final = ("No space left", "quota exceeded")  # in the texts of errors
FILES: Final = ("data.mdb", LOCK_TABLE, "owner.lock")
NETWORK_MAGICS: Final = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x5346414F: "AFS",
    0x01021997: "9P",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x65735546: "FUSE",
}


class LmdbReader:
    """`Reader` over one LMDB transaction."""

    def __init__(self, txn: lmdb.Transaction[bytes], tables: list[lmdb._Database]) -> None:
        self._txn = txn
        self._tables = tables

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._txn.get(key, db=self._tables[table])

    def scan(
        self, table: Table, after: bytes, below: bytes, limit: int, limit_bytes: int = 1 << 62
    ) -> list[tuple[bytes, bytes]]:
        cursor = self._txn.cursor(self._tables[table])
        if limit <= 0 or not cursor.set_range(after + b"\0"):
            return []
        found: list[tuple[bytes, bytes]] = []
        left_bytes = limit_bytes
        for item in cursor.iternext():
            if item[0] >= below or len(found) == limit or left_bytes <= 0:
                break
            found.append(item)
            left_bytes -= len(item[0]) + len(item[1])
        return found


class LmdbSnapshot(LmdbReader):
    """A reader for a `with` block, which ends its transaction. The binding frees the transaction's
    slot in the reader table (126 slots) only when the object is deleted. A waiting coroutine keeps
    the snapshot in its frame, so `__exit__` deletes the reference."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._txn.abort()
        del self._txn


class LmdbWriter(LmdbReader):
    """`Writer` over one LMDB write transaction. `has_written`: its commit needs the disk."""

    has_written = False

    def put(self, table: Table, items: Iterable[tuple[bytes, bytes]]) -> None:
        self.has_written = True
        self._txn.cursor(self._tables[table]).putmulti(items)

    def delete(self, table: Table, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.has_written = self._txn.delete(key, db=self._tables[table]) or self.has_written


class LmdbStore:
    """The store in `directory`, which it creates if missing.

    Raises BadConfig (a network file system, no permission, damaged files), InUse (another server
    has it open), NoSpace.
    """

    def __init__(self, directory: Path) -> None:
        _make_directory(directory)
        refuse_network(file_system_magic(directory), directory)
        self.directory = directory
        self.scratch: str | None = str(directory)
        self.failure = ""
        self._owner_fd = _own(directory)
        try:
            with _translated(directory):
                with lock_table_in_memory(directory):
                    self._env = _open_environment(directory)
                self._env.reader_check()
                self._tables = [self._env.open_db(table.name.lower().encode()) for table in Table]
        except CacheFSError:
            os.close(self._owner_fd)
            raise
        self._writer = GroupCommit(self._begin, "metadata-writer")

    def snapshot(self) -> LmdbSnapshot:
        """Begins a read transaction. Keep it short: LMDB cannot reuse the pages that it sees."""
        try:
            return LmdbSnapshot(self._env.begin(), self._tables)
        except lmdb.Error as err:
            raise _typed(err, self.directory) from err

    def write(self, function: Callable[[Writer], T]) -> Future[T]:
        return self._writer.submit(function)

    @property
    def waits_s(self) -> float:
        return self._writer.waits_s

    @property
    def waiting(self) -> int:
        return self._writer.waiting

    def close(self) -> None:
        self._writer.close()
        if self._owner_fd >= 0:
            self._env.close()
            os.close(self._owner_fd)
            self._owner_fd = -1

    @contextmanager
    def _begin(self) -> Iterator[Writer]:
        try:
            with self._env.begin(write=True) as txn:
                writer = LmdbWriter(txn, self._tables)
                yield writer
        except lmdb.Error as err:
            typed = _typed(err, self.directory)
            self.failure = typed.cause
            raise typed from err
        if writer.has_written:
            self.failure = ""


def remove_store(directory: Path) -> None:
    """Deletes the files of a closed store, and the directory if that leaves it empty."""
    for name in FILES:
        (directory / name).unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError:
        pass  # the directory holds other files


def file_system_magic(path: Path) -> int:
    """Returns `f_type` of the file system that holds `path`, 0 if unknown."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(512)  # larger than any struct statfs
    if not hasattr(libc, "statfs") or libc.statfs(os.fsencode(path), buffer) != 0:
        return 0
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def refuse_network(magic: int, directory: Path) -> None:
    """Raises BadConfig for a network file system: LMDB needs local memory maps and locks."""
    if (kind := NETWORK_MAGICS.get(magic)) is not None:
        raise BadConfig(
            f"the metadata store cannot be on a {kind} file system",
            path=str(directory),
            remedy="choose a directory on a local disk",
        )


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as err:
        raise BadConfig(
            f"the metadata directory cannot be used: {err.strerror}",
            path=str(directory),
            remedy="choose another one or correct its permissions",
        ) from err


def _own(directory: Path) -> int:
    fd = os.open(directory / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        os.close(fd)
        raise InUse(
            "another server uses this metadata directory",
            path=str(directory),
            remedy="stop it, or choose another cache directory",
        ) from err
    return fd


def _open_environment(directory: Path) -> lmdb.Environment:
    """Opens LMDB with the largest map that the address space allows (`ulimit -v` may limit it)."""
    map_bytes = MAP_BYTES
    while True:
        try:
            return lmdb.Environment(
                str(directory),
                map_size=map_bytes,
                max_dbs=len(Table),
                mode=0o600,
                max_spare_txns=4,
            )
        except lmdb.MemoryError:
            if map_bytes <= MIN_MAP_BYTES:
                raise
            map_bytes >>= 2


@contextmanager
def _translated(directory: Path) -> Iterator[None]:
    try:
        yield
    except lmdb.Error as err:
        raise _typed(err, directory) from err


def _typed(err: lmdb.Error, directory: Path) -> CacheFSError:
    path = str(directory)
    if isinstance(err, lmdb.MapFullError):
        return NoSpace(
            "the metadata store has filled its map in the address space",
            path=path,
            remedy="raise its limit (ulimit -v, LimitAS= of systemd) and start the server again",
        )
    if isinstance(err, lmdb.DiskError) or any(text in str(err) for text in NO_ROOM):
        return NoSpace("no room for the metadata store", path=path, remedy="make room on its disk")
    if isinstance(err, lmdb.PanicError):  # a write of the meta page failed: what it has is right
        return Unavailable(
            "the metadata store could not be written, and is not read before it is opened again",
            path=path,
            remedy="see to its disk, then start the server again",
        )
    damaged = (
        lmdb.CorruptedError,
        lmdb.InvalidError,
        lmdb.PageNotFoundError,
        lmdb.VersionMismatchError,
    )
    if isinstance(err, damaged):
        return BadConfig(
            f"the metadata store is damaged: {err}",
            path=path,
            remedy="remove this directory: names are read from the origin again",
        )
    return Unavailable(f"the metadata store failed: {err}", path=path)
