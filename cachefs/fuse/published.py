"""Opening what is complete on this node: one `openat` in the tier's `pub/` directory, no message.

The worker links a file there when every byte is in it and unlinks it before it evicts. While it
evicts it holds a lease on the file, so an open must not wait for it: O_NONBLOCK, EAGAIN = absent.
"""

from __future__ import annotations

import errno
import os
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_ABSENT: Final = frozenset(
    (errno.ENOENT, errno.EAGAIN, errno.ELOOP, errno.EBADF, errno.ENXIO, errno.EACCES, errno.EIO)
)


def open_published(dir_fd: int, name: str, size: int) -> tuple[int, int] | None:
    """A descriptor of the complete file and its st_dev, or None when it is not (or not surely)
    there.

    Raises OSError when this process, or the system, has no descriptor left.
    """
    try:
        fd = os.open(name, _FLAGS, dir_fd=dir_fd)
    except OSError as err:
        if err.errno in _ABSENT:
            return None
        raise
    info = os.fstat(fd)
    if info.st_nlink >= 2 and info.st_size == size:
        return fd, info.st_dev
    os.close(fd)  # unpublished between openat and now, or not what its name says
    return None
