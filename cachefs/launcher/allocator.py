"""How a server's memory allocator treats the buffers through which bodies come.

As glibc has it, a buffer of a megabyte is given back to the kernel as soon as it is free, and the
next one is made of fresh pages, each with a fault and zeroed. There are also up to eight arenas per
CPU, and each keeps some of what it got. Two arenas that keep some free megabytes cost less.
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
MAPPED_BYTES: Final = 4 << 20  # a buffer of so much is the kernel's again when it is free


def settle() -> bool:
    """Before a server starts threads. False where the C library does not know how."""
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
