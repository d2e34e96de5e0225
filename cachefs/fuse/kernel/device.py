"""The descriptor of /dev/fuse: requests in, replies and notifications out, backing files.

The supervisor shares the descriptor and keeps the mount alive, so this module never closes it. Each
call is one system call; only `notify` may block (see `cachefs.fuse.kernel_cache`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final

from cachefs.fuse.kernel import codec

_BACKING_OPEN: Final = 0x4010E501
_BACKING_CLOSE: Final = 0x4004E502
_ID: Final = struct.Struct("<I")
_GONE: Final = frozenset((errno.ENODEV, errno.ECONNABORTED, errno.EPERM))  # unmounted, aborted
_NOT_REGISTERED: Final = frozenset(
    (errno.ENOENT, errno.ENODEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTTY)  # or no passthrough
)
_NOT_NOW: Final = frozenset((errno.ENOENT, errno.EINTR))  # the kernel withdrew the request


class Unmounted(Exception):
    """The kernel has ended the session."""


class Device:
    """The operations on /dev/fuse. `buffer` holds the last request read."""

    def __init__(self, fd: int, buffer_bytes: int) -> None:
        self.fd = fd
        self.buffer = bytearray(buffer_bytes)
        self._iov = [self.buffer]

    def read(self) -> int:
        """Reads a request into `buffer`. Returns its size, 0 if there is none. Raises Unmounted."""
        while True:
            try:
                return os.readv(self.fd, self._iov)
            except BlockingIOError:
                return 0
            except OSError as err:
                if err.errno in _GONE:
                    raise Unmounted(os.strerror(err.errno or 0)) from err
                if err.errno not in _NOT_NOW:
                    raise

    def write(self, reply: bytes) -> bool:
        """Sends a reply. Returns False when the caller no longer waits for it."""
        try:
            os.write(self.fd, reply)
        except OSError as err:
            return self._unwanted(err)
        return True

    def write_data(self, unique: int, data: bytes | memoryview) -> bool:
        """Sends a reply with data, as `write`."""
        try:
            os.writev(self.fd, (codec.data_header(unique, len(data)), data))
        except OSError as err:
            return self._unwanted(err)
        return True

    def notify(self, notification: bytes) -> bool:
        """Sends a notification. Returns False when the kernel does not support it."""
        try:
            os.write(self.fd, notification)
        except OSError as err:
            if err.errno == errno.EINVAL:
                return False
            raise
        return True

    def open_backing(self, fd: int) -> int:
        """Registers the file of `fd` and returns its backing id (> 0). The caller may close `fd`.
        Raises OSError: EPERM (no CAP_SYS_ADMIN), ELOOP (stacked too deep), EINVAL, EOPNOTSUPP."""
        argument = bytearray(codec.BACKING_MAP.pack(fd, 0, 0))
        backing_id: int = fcntl.ioctl(self.fd, _BACKING_OPEN, argument)
        return backing_id

    def close_backing(self, backing_id: int) -> None:
        """Releases a backing id. Ignores one that is not registered."""
        try:
            fcntl.ioctl(self.fd, _BACKING_CLOSE, _ID.pack(backing_id))
        except OSError as err:
            if err.errno not in _NOT_REGISTERED:
                raise

    @staticmethod
    def _unwanted(err: OSError) -> bool:
        if err.errno in _GONE or err.errno in _NOT_NOW:
            return False
        raise err
