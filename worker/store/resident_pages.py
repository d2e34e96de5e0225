"""The first part of a file that stays in memory: a locked mapping of the index's data.

LMDB reads the index through a memory map, and py-lmdb holds the GIL while a cursor reads. A page
that has to be read from a disk that hangs then stops all threads of the process. The kernel drops
no page of a locked mapping (mlock(2)), so LMDB finds these pages in the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from typing import Final

_READ_BYTES: Final = 1 << 20
_FAILED: Final = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_libc.munmap.argtypes = _libc.mlock.argtypes = ctypes.c_void_p, ctypes.c_size_t


class ResidentPages:
    """Keeps up to `most_bytes` from the start of the file `path` in memory: those that the file has
    at each `refresh`, until `close`.

    Fewer where this process may lock less memory (RLIMIT_MEMLOCK, without CAP_IPC_LOCK), none
    where its address space is limited to less (RLIMIT_AS). The calls block, without the GIL. Raises
    OSError.
    """

    def __init__(self, path: str, most_bytes: int) -> None:
        self._mapped_bytes = max(mmap.PAGESIZE, _rounded_down(most_bytes))
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.resident_bytes = self._read_bytes = 0
        address = _libc.mmap(None, self._mapped_bytes, mmap.PROT_READ, mmap.MAP_SHARED, self._fd, 0)
        if address == _FAILED:
            address = self._mapped_bytes = 0
        self._address = int(address)

    def refresh(self) -> None:
        """Brings the pages that the file has by now into memory, and keeps them there."""
        size_bytes = min(_rounded_down(os.fstat(self._fd).st_size), self._mapped_bytes)
        self._read(size_bytes)
        self.resident_bytes = self._lock(size_bytes)

    def _read(self, size_bytes: int) -> None:
        """Reads what is new of the file, in order: the kernel fetches locked pages one by one."""
        buffer = bytearray(min(size_bytes, _READ_BYTES))
        for offset in range(self._read_bytes, size_bytes, _READ_BYTES):
            os.preadv(self._fd, [buffer], offset)
        self._read_bytes = size_bytes

    def _lock(self, size_bytes: int) -> int:
        """Locks the first pages, as many as this process may. Returns their bytes."""
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        for some_bytes in (size_bytes, min(size_bytes, _rounded_down(limit_bytes))):
            if some_bytes > 0 and _libc.mlock(self._address, some_bytes) == 0:
                return some_bytes
        return 0

    def close(self) -> None:
        """Lets the kernel drop the pages. Idempotent."""
        if self._fd >= 0:
            _libc.munmap(self._address, self._mapped_bytes)
            os.close(self._fd)
            self._fd, self.resident_bytes = -1, 0


def _rounded_down(size_bytes: int) -> int:
    return size_bytes // mmap.PAGESIZE * mmap.PAGESIZE
