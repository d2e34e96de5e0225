"""A pipe that splices file pages to /dev/fuse: one copy, into the reader's page cache, instead of
the two of read and write.

Without SPLICE_F_MOVE: the pages belong to the cache file.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

MIN_BYTES: Final = 64 << 10  # below it, read and write cost less than three system calls
MAX_BYTES: Final = 128 * 4096  # fits into a pipe of `_PIPE_BYTES` with its header, unaligned
_PIPE_BYTES: Final = 1 << 20  # the default limit of ordinary users (fs.pipe-max-size)
_UNWANTED: Final = frozenset((errno.ENOENT, errno.ENODEV, errno.ECONNABORTED, errno.EPERM))


class Splicer:
    """Owns the pipe. Belongs to one loop."""

    def __init__(self, device_fd: int) -> None:
        self._device_fd = device_fd
        self._read_fd = self._write_fd = -1
        self._usable = True

    def send(self, header: bytes, fd: int, position: int, size: int) -> bool:
        """Sends `header` and `size` bytes of `fd` as one reply. Returns False if nothing was sent:
        the caller then reads and writes. A reply that the kernel no longer wants counts as sent."""
        if not self._usable or not MIN_BYTES <= size <= MAX_BYTES:
            return False
        if self._read_fd < 0 and not self._open():
            return False
        if not self._load(header, fd, position, size):
            self.close()  # discards the bytes in the pipe
            return False
        try:
            os.splice(self._read_fd, self._device_fd, len(header) + size)
        except OSError as err:
            self.close()
            if err.errno not in _UNWANTED:
                raise
        return True

    def close(self) -> None:
        """Closes the pipe. Idempotent; the next `send` opens another pipe."""
        if self._read_fd >= 0:
            os.close(self._read_fd)
            os.close(self._write_fd)
            self._read_fd = self._write_fd = -1

    def _open(self) -> bool:
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.fcntl(self._write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except PermissionError:  # the user has too many pipes
            self.close()
            self._usable = False
        return self._usable

    def _load(self, header: bytes, fd: int, position: int, size: int) -> bool:
        os.write(self._write_fd, header)
        end = position + size
        while position < end:
            try:
                count = os.splice(fd, self._write_fd, end - position, offset_src=position)
            except OSError as err:
                if err.errno in (errno.EINVAL, errno.EAGAIN):  # not supported, or the pipe is full
                    return False
                raise
            if not count:
                return False
            position += count
        return True
