"""Files in memory of bytes that a reply contained, so that every read takes the same path."""

from __future__ import annotations

import os

from cachefs.core.owned_fd import OwnedFd, opened


def memory_file(data: bytes) -> OwnedFd:
    """Returns a descriptor of a memfd with these bytes. Raises OSError."""
    owner = opened(os.memfd_create, "copied", os.MFD_CLOEXEC)
    os.write(owner.fileno(), data)
    return owner
