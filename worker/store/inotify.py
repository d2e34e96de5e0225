"""The kernel's inotify: watches of directories that end with the first open of a name in them.

A watch belongs to the directory itself: it sees opens by every mount that shows it, in every mount
namespace. `stat` opens nothing. The calls access memory only.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

_OPEN, _OVERFLOW = 0x20, 0x4000
_ONE_SHOT, _DIRECTORY_ONLY = 0x8000_0000, 0x0100_0000
_MASK: Final = _OPEN | _ONE_SHOT | _DIRECTORY_ONLY
_EVENT: Final = struct.Struct("iIII")  # watch, mask, cookie, bytes of the name that follows
_READ_BYTES: Final = 1 << 16
_LIMITS: Final = Path("/proc/sys/fs/inotify")
_libc = ctypes.CDLL(None, use_errno=True)


class Opens(NamedTuple):
    """What happened since the last look. `lost`: the kernel had no room for all of it."""

    watches: frozenset[int]
    lost: bool


class Inotify:
    """One instance, closed by `close`. A directory keeps its watch's number as long as that is
    armed. Numbers are not used again."""

    def __init__(self) -> None:
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def watch(self, directory: int) -> int:
        """Arms the watch of a directory that is open as `directory`; returns its number. Raises
        OSError: ENOSPC where the user may watch no more."""
        path = b"/proc/self/fd/%d" % directory
        return _checked(_libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(_MASK)))

    def forget(self, watch: int) -> None:
        """Ends a watch, if it has not ended."""
        _libc.inotify_rm_watch(self._fd, watch)

    def opens(self) -> Opens:
        """Returns the watches that an open has ended since the last call. Raises OSError."""
        watches: set[int] = set()
        lost = False
        while data := self._read():
            start = 0
            while start < len(data):
                watch, mask, _, name_bytes = _EVENT.unpack_from(data, start)
                start += _EVENT.size + name_bytes
                lost = lost or bool(mask & _OVERFLOW)
                if mask & _OPEN:
                    watches.add(watch)
        return Opens(frozenset(watches), lost)

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Ends all watches. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def most_watches() -> int:
    """Returns how many watches the kernel allows a user; 0 if it has no inotify."""
    try:
        return int((_LIMITS / "max_user_watches").read_text())
    except (OSError, ValueError):
        return 0


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
