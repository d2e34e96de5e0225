"""A file of a source as Python's file object: reads, seeks, and maps of complete files."""

from __future__ import annotations

import errno
import io
import mmap
import os
from typing import TYPE_CHECKING, Any, Final

from cachefs.client.memory_file import memory_file
from cachefs.core.errors import CacheFSError, Stale
from cachefs.library.open_file import OpenFile
from cachefs.library.os_errors import os_error

LINE_BYTES: Final = 8192  # read at once for a line

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


def joined(folder: str, path: bytes) -> str:
    """Returns the path or URL of a path below a folder."""
    return f"{folder.rstrip('/')}/{os.fsdecode(path)}".rstrip("/")


class CacheFile(io.RawIOBase):
    """A binary file for reading. `pread` and `view` do not move its position. Raises OSError."""

    mode: Final = "rb"

    def __init__(
        self, file: OpenFile, folder: str, path: bytes, settings: dict[str, Any] | None = None
    ) -> None:
        """`folder` and `path` together are the file's name. `settings`: of its tree."""
        super().__init__()
        self._folder = folder
        self._path = path
        self._settings = settings or {}
        self._file = file
        self._position = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns what opens the same version again in another process, at the same position."""
        self._check()
        inode = self._file.inode
        version = (inode.ino, inode.version, inode.nonce)
        return _reopened, (self._folder, self._path, self._settings, version, self._position)

    def __repr__(self) -> str:
        return f"<CacheFile {self.name!r}{' closed' if self.closed else ''}>"

    @property
    def name(self) -> str:
        return joined(self._folder, self._path)

    @property
    def size(self) -> int:
        """The size in bytes. It never changes: a replaced object is another file."""
        return self._file.size

    @property
    def complete(self) -> bool:
        """Whether every byte is cached on this node: reads then need no request."""
        return self._file.complete_fd >= 0 or not self._file.size

    def readable(self) -> bool:
        self._check()
        return True

    def seekable(self) -> bool:
        self._check()
        return True

    def fileno(self) -> int:
        """Returns the descriptor of a complete file. Raises UnsupportedOperation for a partial
        one, whose descriptor has holes."""
        self._check()
        if not self.complete:
            raise io.UnsupportedOperation("fileno of a file that is not cached completely")
        if self._file.complete_fd < 0:  # reads of an empty file need none
            self._file.use_published(memory_file(b""), 0)
        return self._file.complete_fd

    def tell(self) -> int:
        self._check()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"invalid whence: {whence}")
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"negative seek position {base + offset}", self.name)
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        data = self.pread(size, self._position)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        data = self.pread(self._file.size - self._position, self._position)
        self._position += len(data)
        return data

    def readline(self, size: int | None = -1, /) -> bytes:
        """Returns the next line with its end. Python's own method would request each byte."""
        limit = self.size if size is None or size < 0 else size
        parts, found, length = [], False, 0
        while not found and length < limit:
            data = self.pread(min(LINE_BYTES, limit - length), self._position)
            line, end, _ = data.partition(b"\n")
            found = bool(end) or not data
            parts.append(line + end)
            length += len(parts[-1])
            self._position += len(parts[-1])
        return b"".join(parts)

    def write(self, _: ReadableBuffer, /) -> int:
        raise io.UnsupportedOperation(f"files of CacheFS are read-only: {self.name}")

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._check()
        try:
            count = self._file.pread_into(buffer, self._position)
        except (CacheFSError, OSError) as err:
            raise os_error(err, self.name) from err
        self._position += count
        return count

    def pread(self, size: int, offset: int) -> bytes:
        """Returns the bytes at `offset`: fewer than `size` only at the end of the file."""
        if self.closed:
            self._check()
        try:
            return self._file.pread(size, offset)
        except (CacheFSError, OSError) as err:
            raise os_error(err, self.name) from err

    def view(self) -> memoryview:
        """Returns the whole file as memory: a map of a complete file. A partial file is read from
        the server first, and becomes complete where the cache has room; else its bytes are
        copied. The view stays valid after `close`."""
        self._check()
        if not self.size:
            return memoryview(b"")
        if not self.complete:
            data = self.pread(self.size, 0)
            if not self.complete:
                return memoryview(data)
        return memoryview(mmap.mmap(self.fileno(), self.size, prot=mmap.PROT_READ))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on a closed file")


def _reopened(
    folder: str,
    path: bytes,
    settings: dict[str, Any],
    version: tuple[int, int, int],
    position: int,
) -> CacheFile:
    """Returns a file that another process had open. Raises OSError: ESTALE if it was replaced."""
    from cachefs.library import api

    file = api.tree(folder, **settings).open(path)
    inode = file._file.inode
    if (inode.ino, inode.version, inode.nonce) != version:
        file.close()
        raise os_error(Stale("the file was replaced since it was opened"), file.name)
    file.seek(position)
    return file
