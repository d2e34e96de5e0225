"""System calls that Python does not have, and the data that the suite of the transports reads."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
from collections.abc import Callable
from typing import NamedTuple

_GETDENTS64 = 217
_SYNCFS = 306
_HEAD = struct.Struct("<QqHB")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Listed(NamedTuple):
    """A directory entry as getdents64 gives it; `offset` is where the next one starts."""

    ino: int
    offset: int
    kind: int
    name: bytes


def system_call(number: int, *arguments: object) -> int:
    """Raises OSError."""
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def getdents(fd: int, size: int) -> list[Listed]:
    """The next entries, as many as fit in `size` bytes; none at the end."""
    buffer = ctypes.create_string_buffer(size)
    end = system_call(_GETDENTS64, fd, buffer, size)
    found, at = [], 0
    while at < end:
        ino, offset, length, kind = _HEAD.unpack_from(buffer.raw, at)
        name = buffer.raw[at + _HEAD.size : at + length].split(b"\0", 1)[0]
        found.append(Listed(ino, offset, kind, name))
        at += length
    return found


def list_some(fd: int, least: int) -> list[Listed]:
    """The next `least` entries and maybe more; fewer at the end. A call may end before its buffer
    is full: where an answer of the file system ends."""
    found: list[Listed] = []
    while len(found) < least and (some := getdents(fd, 2000)):
        found += some
    return found


def list_all(fd: int, size: int = 32 * KIB) -> list[Listed]:
    """What is left of a directory."""
    found: list[Listed] = []
    while some := getdents(fd, size):
        found += some
    return found


def mapped(view: mmap.mmap, size: int) -> bytes:
    """The first bytes of a map. By a system call: a page fault would hold the GIL, for which the
    server of the file may be waiting, if it lives in this process."""
    fd = os.memfd_create("mapped")
    try:
        with memoryview(view) as whole, whole[:size] as part:
            done = 0
            while done < size:
                with part[done:] as rest:
                    done += os.write(fd, rest)
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def syncfs(fd: int) -> None:
    system_call(_SYNCFS, fd)


def body(seed: int, size: int) -> bytes:
    """Bytes that depend on `seed` alone."""
    return random.Random(seed).randbytes(size)


def error_of(act: Callable[[], object]) -> int:
    """The errno that an action ends with, 0 for none."""
    try:
        act()
    except OSError as err:
        return err.errno or 0
    return 0
