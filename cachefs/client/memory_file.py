"""Files in memory of bytes that a reply contained, so that every read takes the same path."""

from __future__ import annotations

import os


def memory_file(data: bytes) -> int:
    """Returns a descriptor of a memfd with these bytes. Raises OSError."""
    fd = os.memfd_create("copied", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
    except BaseException:
        os.close(fd)
        raise
    return fd
