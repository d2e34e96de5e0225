"""The descriptor of /dev/fuse: requests in, replies and notifications out, backing files.

The descriptor is shared with whoever keeps the mount alive, so it is never closed here. Each call
is one system call; only `notify` may block (see `cachefs.fuse.kernel_cache`).
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
_NOT_NOW: Final = frozenset((errno.ENOENT, errno.EINTR))  # the request was taken back meanwhile


class Unmounted(Exception):
    """The kernel has ended the session."""


class Device:
    """See the module. `buffer` holds the request that was read last."""

    def __init__(self, fd: int, buffer_bytes: int) -> None:
        self.fd = fd
        self.buffer = bytearray(buffer_bytes)
        self._iov = [self.buffer]

    def read(self) -> int:
        """The size of the next request, which is in `buffer`; 0 when there is none now. Raises
        Unmounted."""
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
        """Sends a reply; False when nobody waits for it any more."""
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
        """Sends a notification. False when the kernel does not know this one."""
        try:
            os.write(self.fd, notification)
        except OSError as err:
            if err.errno == errno.EINVAL:
                return False
            raise
        return True

    def open_backing(self, fd: int) -> int:
        """The id (> 0) by which the kernel reads the file of `fd`, which may be closed then. Raises
        OSError: EPERM (no CAP_SYS_ADMIN), ELOOP (stacked too deep), EINVAL, EOPNOTSUPP."""
        argument = bytearray(codec.BACKING_MAP.pack(fd, 0, 0))
        backing_id: int = fcntl.ioctl(self.fd, _BACKING_OPEN, argument)
        return backing_id

    def close_backing(self, backing_id: int) -> None:
        """Gives an id back; one that is not registered is no error."""
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
