"""The name of a Unix socket at which processes listen one after the other: `SocketName`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import stat
import time
from pathlib import Path
from typing import Final

STALE_S: Final = 60.0  # a younger socket may be one that another process has just bound


class SocketName:
    """A name, and the socket of this process, which binds at `hidden` beside it.

    A process takes a name over at once: no connection is refused in between. Its socket stays at
    `hidden` until `release`, so that it can take the name again when a successor has ended: an
    upgrade may fail. Removes hidden sockets that killed processes left.
    """

    def __init__(self, path: str) -> None:
        """Chooses a hidden name. Raises OSError if the directory cannot be read."""
        self.path = path
        directory, name = os.path.split(path)
        prefix = f".{hashlib.blake2s(name.encode(), digest_size=4).hexdigest()}-"
        for other in Path(directory).glob(f"{prefix}*"):
            _remove_if_stale(other)
        self.hidden = os.path.join(directory, f"{prefix}{secrets.token_hex(4)}")

    def take(self) -> None:
        """Gives the name to the socket at `hidden`, and takes it from another. Raises OSError."""
        link = f"{self.hidden}n"
        os.link(self.hidden, link)
        os.rename(link, self.path)

    def keep(self) -> bool:
        """Takes the name if no process listens there; returns whether it did. Raises OSError."""
        if self._is_ours() or _is_listening(self.path):
            return False
        self.take()
        return True

    def release(self) -> None:
        """Removes this process's socket, and the name unless another socket has it. Idempotent.
        Raises OSError."""
        if self._is_ours():
            os.unlink(self.path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.hidden)

    def _is_ours(self) -> bool:
        try:
            return os.path.samefile(self.path, self.hidden)
        except FileNotFoundError:
            return False


def _remove_if_stale(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        info = path.stat()
        is_old = time.time() - info.st_ctime > STALE_S
        if is_old and stat.S_ISSOCK(info.st_mode) and not _is_listening(str(path)):
            path.unlink()


def _is_listening(path: str) -> bool:
    """Returns whether a process listens at a socket, even if it does not accept now."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # BlockingIOError: its queue is full
            return True
    return True
