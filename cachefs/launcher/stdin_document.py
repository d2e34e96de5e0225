"""The document that a started process reads from its standard input.

The document is in a memfd before the process starts: a starter that is killed at any moment leaves
a child with the whole document, or no child.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def standard_input(document: bytes) -> Iterator[int]:
    """Yields a descriptor for the standard input of a new process. Raises OSError."""
    fd = os.memfd_create("cachefs-document", os.MFD_CLOEXEC)
    try:
        rest = memoryview(document)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
