"""Reserved space in the state home, so that a server can be restarted on a full disk.

A file of `RESERVE_BYTES`, fully allocated. The launcher of a server removes it when the file system
is nearly full; a running server creates it again once there is enough space.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from cachefs.core.units import format_size

log = logging.getLogger(__name__)

NAME: Final = "reserve"
RESERVE_BYTES: Final = 8 << 20
SHORT_BYTES: Final = 1 << 20  # a start needs less: a pointer, a socket, some pages of names
ROOMY_BYTES: Final = 4 * RESERVE_BYTES  # minimum of free space to create it


class Reserve:
    """The reserve of one state home. Its methods block briefly."""

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self._home = Path(home)

    def make(self) -> bool:
        """Creates the reserve if there is space. Returns whether it exists."""
        path = self._home / NAME
        try:
            if path.exists():
                return True
            if self._free_bytes() < ROOMY_BYTES:
                return False
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as err:
            log.debug("no reserve in the state home: %s", err.strerror)
            return False
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError as err:
            log.debug("no reserve in the state home: %s", err.strerror)
            self._remove()
            return False
        finally:
            os.close(fd)
        return True

    def give_up_if_short(self) -> str:
        """Removes the reserve if the state home is full, and returns a warning, else ""."""
        try:
            if self._free_bytes() >= SHORT_BYTES:
                return ""
        except OSError:
            return ""  # there is no state home yet
        had_reserve = self._remove()
        kept = "its reserve is used now" if had_reserve else "its reserve is used up"
        line = (
            f"the state home {self._home} is full, {kept}: servers may fail to start; "
            f"free at least {format_size(ROOMY_BYTES)} there"
        )
        # A client tries to start a server every few seconds: warn once.
        log.log(logging.WARNING if had_reserve else logging.DEBUG, "%s", line)
        return line

    def _free_bytes(self) -> int:
        vfs = os.statvfs(self._home)
        return vfs.f_bavail * vfs.f_frsize

    def _remove(self) -> bool:
        with contextlib.suppress(OSError):
            (self._home / NAME).unlink()
            return True
        return False
