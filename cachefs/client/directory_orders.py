"""Orders that this process announces by ioctl on a directory of a mount, as any user of it."""

from __future__ import annotations

import array
import errno
import fcntl
import os
from collections.abc import Iterable
from typing import Final

from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    CacheFSError,
    Interrupted,
    NotFound,
    Unreachable,
    Unsupported,
)
from cachefs.core.order_ioctl import END, PIECE, STATE, ListPiece, ListState, pieces
from cachefs.core.owned_fd import opened

_TYPES: Final[dict[int, type[CacheFSError]]] = {
    errno.EACCES: AccessDenied,
    errno.EINTR: Interrupted,
    errno.ENOENT: NotFound,
}


class DirectoryOrders:
    """The orders of this user on the mount with the directory `path`. The directory is open only
    during a call, so that the mount is not busy."""

    def __init__(self, path: str) -> None:
        self.path = path

    def announce(
        self,
        name: str,
        inos: array.array[int],
        *,
        first: int = 0,
        total: int | None = None,
        batch_span: int = 0,
    ) -> None:
        """Announces a list, or its part from place `first` on, of `total`. The mount may hold some
        of the part until `state` is called. Raises Unsupported, BadConfig for a part that does not
        continue the list, Interrupted, Unreachable."""
        parts = pieces(name, inos, first=first, total=total, batch_span=batch_span)
        self._call(PIECE, parts)

    def state(self, name: str) -> ListState:
        """Returns how far an order is. Raises NotFound if it has ended, and as `announce`."""
        buffer = bytearray(ListPiece(name).header())
        self._call(STATE, [buffer])
        return ListState.decode(buffer)

    def end(self, name: str) -> None:
        """Ends an order. Raises as `announce`."""
        self._call(END, [bytearray(ListPiece(name).header())])

    def _call(self, command: int, arguments: Iterable[bytearray]) -> None:
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            with opened(os.open, self.path, flags) as directory:
                for argument in arguments:
                    fcntl.ioctl(directory, command, argument)
        except OSError as err:
            raise self._typed(err) from err

    def _typed(self, err: OSError) -> CacheFSError:
        if err.errno == errno.ENOTTY:
            return Unsupported(
                "this directory takes no announcements of orders",
                path=self.path,
                remedy="mount it with `cachefs mount` of this version and --transport kernel; what "
                "`cachefs views` shows as covered is complete here and needs no order",
            )
        if err.errno == errno.EINVAL:
            return BadConfig(
                "the order was refused: the mount has too many, or it was interrupted",
                path=self.path,
                remedy="announce it again from its start",
            )
        kind = _TYPES.get(err.errno or 0, Unreachable)
        return kind(err.strerror or "the mount failed", path=self.path)
