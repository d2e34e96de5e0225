"""The memory allocator settings of a server, for its transfer buffers.

By default glibc returns a freed buffer of a megabyte to the kernel at once, so the next one takes a
page fault and zeroing per page. It also uses up to eight arenas per CPU, each of which retains
memory. Two arenas that retain some free megabytes cost less.
"""

from __future__ import annotations

import ctypes
from typing import Final

# Of <malloc.h>; other C libraries have no `mallopt`, or ignore it.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

ARENAS: Final = 2
KEPT_BYTES: Final = 32 << 20  # of each arena, when free
MAPPED_BYTES: Final = 4 << 20  # buffers from this size are returned to the kernel when freed


def settle() -> bool:
    """Applies the settings, before a server starts threads. Returns False if unsupported."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    options = (
        (_ARENA_MAX, ARENAS),
        (_TRIM_THRESHOLD, KEPT_BYTES),
        (_MMAP_THRESHOLD, MAPPED_BYTES),
    )
    return all(mallopt(*option) for option in options)
