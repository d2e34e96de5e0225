"""What a started process is told on its standard input.

The document lies in memory before the process is started: a starter that is killed at any moment
leaves a child that knows all of it, or no child.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def standard_input(document: bytes) -> Iterator[int]:
    """A descriptor to start a process with. Raises OSError."""
    fd = os.memfd_create("cachefs-document", os.MFD_CLOEXEC)
    try:
        rest = memoryview(document)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
