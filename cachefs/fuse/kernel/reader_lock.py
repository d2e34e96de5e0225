"""The lock of a mount's reader, in the takeover table: one client at a time reads /dev/fuse.

A robust mutex of pthread (`man 3 pthread_mutexattr_setrobust`) in the shared memory of the table.
The kernel frees it when the thread that took it ends, in whatever pid namespace that is. `flock`
would not do: the kernel may hold another thread of a killed client in a notification that waits for
a request which only the successor answers, and until that thread ends the descriptors stay open.
The thread that takes the lock must be the one that reads requests.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from typing import Final

_MARK: Final = struct.Struct("<I")
_MARK_AT: Final = 28  # after the header of the table; 0 in tables of versions without the lock
_PRESENT: Final = 1
_MUTEX_AT: Final = 64
_ROOM: Final = 64  # bytes; a mutex has 40 to 48
_SHARED: Final = 1  # PTHREAD_PROCESS_SHARED
_ROBUST: Final = 1  # PTHREAD_MUTEX_ROBUST
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_FAILED: Final = ctypes.c_void_p(-1).value


def create(table_fd: int) -> None:
    """Makes the lock of a new table. Raises OSError."""
    attributes = ctypes.create_string_buffer(_ROOM)
    mutex = _map(table_fd)
    _check(_libc.pthread_mutexattr_init(attributes))
    _check(_libc.pthread_mutexattr_setpshared(attributes, _SHARED))
    _check(_libc.pthread_mutexattr_setrobust(attributes, _ROBUST))
    _check(_libc.pthread_mutex_init(mutex, attributes))
    os.pwrite(table_fd, _MARK.pack(_PRESENT), _MARK_AT)


class ReaderLock:
    """The lock of one table. Its page stays mapped until the process ends: the kernel frees the
    lock through the address at which it was taken."""

    def __init__(self, table_fd: int) -> None:
        self._mutex = _map(table_fd)
        self._exists = os.pread(table_fd, _MARK.size, _MARK_AT) == _MARK.pack(_PRESENT)
        self._is_taken = False

    def try_take(self) -> bool:
        """Takes the lock for this thread; returns False while another client reads. Returns True
        for a table without a lock. Raises OSError."""
        if self._exists and not self._is_taken:
            code = _libc.pthread_mutex_trylock(self._mutex)
            if code == errno.EBUSY:
                return False
            if code == errno.EOWNERDEAD:  # the last reader died
                code = _libc.pthread_mutex_consistent(self._mutex)
            _check(code)
            self._is_taken = True
        return True

    def release(self) -> None:
        """Frees the lock, if this object has it. The thread that took it calls this."""
        if self._is_taken:
            self._is_taken = False
            _check(_libc.pthread_mutex_unlock(self._mutex))


def _map(table_fd: int) -> ctypes.c_void_p:
    """Returns the address of the lock in a new map of the table's first page."""
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, mmap.PAGESIZE, rights, mmap.MAP_SHARED, table_fd, 0)
    if address == _FAILED:
        _check(ctypes.get_errno())
    return ctypes.c_void_p(address + _MUTEX_AT)


def _check(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
