"""How a tier takes its directory: creates or opens it, checks the owner, locks it. Blocking."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import Final

from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    CacheFSError,
    InUse,
    NoDescriptorLeft,
    NoSpace,
    lacks_descriptors,
)

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ANOTHER: Final = "give another directory (--cache-dir; of a worker: --tier)"


def open_directory(path: str) -> int:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    fd = os.open(path, DIRECTORY)
    info = os.fstat(fd)
    if info.st_uid == os.geteuid():
        if stat.S_IMODE(info.st_mode) & 0o077 and not os.listdir(fd):
            os.fchmod(fd, 0o700)
        return fd
    os.close(fd)
    raise AccessDenied(
        f"the cache directory belongs to user {info.st_uid}", remedy=ANOTHER, path=path
    )


def lock(path: str, dir_fd: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("lock", flags, 0o600, dir_fd=dir_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise InUse(
            f"the cache directory is used by the server with pid {owner}",
            remedy=f"stop that server, or {ANOTHER}",
            path=path,
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def typed_error(err: OSError, path: str) -> CacheFSError:
    if err.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return AccessDenied(
            f"the cache directory cannot be written: {err.strerror}", remedy=ANOTHER, path=path
        )
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace("no room for a cache on this file system", remedy=ANOTHER, path=path)
    cause = f"the cache directory cannot be used: {err.strerror or err}"
    if lacks_descriptors(err):
        remedy = "raise the limit of the server (`ulimit -n`)"
        return NoDescriptorLeft(cause, remedy=remedy, path=path)
    return BadConfig(cause, remedy=ANOTHER, path=path)
