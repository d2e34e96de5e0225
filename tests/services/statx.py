"""Attributes of an open file as the file system gives them now, past what the kernel keeps."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final, NamedTuple

_EMPTY_PATH: Final = 0x1000
_FORCE_SYNC: Final = 0x2000
_BASIC: Final = 0x7FF
_BYTES: Final = 256  # of struct statx
_statx = ctypes.CDLL(None, use_errno=True).statx


class Attributes(NamedTuple):
    """Some fields of struct statx."""

    uid: int
    gid: int
    mode: int
    ino: int
    size: int
    mtime_ns: int


def asked_attributes(fd: int) -> Attributes:
    """Raises OSError."""
    buffer = ctypes.create_string_buffer(_BYTES)
    if _statx(fd, b"", _EMPTY_PATH | _FORCE_SYNC, _BASIC, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    uid, gid, mode, ino, size = struct.unpack_from("=IIH2xQQ", buffer.raw, 20)
    seconds, ns = struct.unpack_from("=qI", buffer.raw, 112)
    return Attributes(uid, gid, mode, ino, size, seconds * 10**9 + ns)
