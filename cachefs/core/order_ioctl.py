"""Announcements of orders by ioctl on a directory of a mount, as any user. Pure.

`fcntl.ioctl(fd, PIECE, buffer)` sends a piece of a list, `ioctl(fd, END, buffer)` ends the order,
`ioctl(fd, STATE, buffer)` replaces the header in the buffer by its state. `fd` is any directory of
the mount, opened for reading. The kernel copies a fixed number of bytes, at most 16 KiB, so a list
is sent in pieces; the mount may hold some until the list is complete or its state is requested. An
order belongs to the mount and the user, and ends as other orders do. Errors:
ENOTTY (the mount is of an earlier version, or of the transport pyfuse3), EINVAL (a piece that does
not continue the list, too many orders), ENOENT (no such order, or it has ended).

All numbers are little endian; the entries are inode numbers less `base`, of 4 or 8 bytes.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from cachefs.core.errors import BadConfig

NAME_BYTES: Final = 80  # UTF-8, padded by zeros
PIECE_BYTES: Final = 16_376

_HEADER: Final = struct.Struct(f"<{NAME_BYTES}sQQQIII4x")  # name first total base count width span
_STATE: Final = struct.Struct("<6Q")
ENTRIES_BYTES: Final = PIECE_BYTES - _HEADER.size
WIDTHS: Final = (4, 8)
_MOST_WORDS: Final = ENTRIES_BYTES // 4 * 2  # of numbers of 8 bytes that fit with 4 bytes each
assert _HEADER.size == 120
assert _STATE.size <= _HEADER.size


def _command(direction: int, number: int, size_bytes: int) -> int:
    """Returns an ioctl number as `_IOC` of <linux/ioctl.h> does. 1: write, 3: read and write."""
    return direction << 30 | size_bytes << 16 | ord("c") << 8 | number


PIECE: Final = _command(1, 0x41, PIECE_BYTES)
END: Final = _command(1, 0x42, _HEADER.size)
STATE: Final = _command(3, 0x43, _HEADER.size)


class ListPiece(NamedTuple):
    """A piece of a list, or the name of an order alone."""

    name: str
    first: int = 0
    total: int = 0
    base: int = 0
    width: int = 8
    batch_span: int = 0
    entries: bytes = b""

    def encode(self) -> bytearray:
        """Returns the argument of PIECE (`fcntl.ioctl` takes at most 1,024 bytes of a `bytes`).
        Raises BadConfig for a name that is too long."""
        return bytearray(self.header() + self.entries).ljust(PIECE_BYTES, b"\0")

    def header(self) -> bytes:
        """Returns the argument of END and STATE. Raises BadConfig."""
        name, count = self.name.encode(), len(self.entries) // self.width
        if not 0 < len(name) <= NAME_BYTES or "\0" in self.name:
            raise BadConfig(f"the name of an order has 1 to {NAME_BYTES} bytes, and no zero byte")
        return _HEADER.pack(
            name, self.first, self.total, self.base, count, self.width, self.batch_span
        )

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> ListPiece:
        """Returns the piece in an argument of PIECE, END or STATE. Raises BadConfig."""
        if len(data) < _HEADER.size:
            raise BadConfig("the argument is shorter than its header")
        raw, first, total, base, count, width, batch_span = _HEADER.unpack_from(data)
        if width not in WIDTHS or count * width > len(data) - _HEADER.size:
            raise BadConfig("a piece of an order has entries beyond its end")
        try:
            name = raw.rstrip(b"\0").decode()
        except UnicodeDecodeError as err:
            raise BadConfig("the name of an order is no UTF-8") from err
        entries = bytes(data[_HEADER.size : _HEADER.size + count * width])
        return cls(name, first, total, base, width, batch_span, entries)


class ListState(NamedTuple):
    """How far an order is; see `OrderStateReply`."""

    position: int
    ahead_files: int
    ahead_bytes: int
    requested: int
    late: int
    total: int

    def encode(self) -> bytes:
        """Returns what STATE writes into its buffer."""
        return _STATE.pack(*self).ljust(_HEADER.size, b"\0")

    @classmethod
    def decode(cls, data: bytes | bytearray) -> ListState:
        """Returns the state from the buffer of STATE."""
        return cls(*_STATE.unpack_from(data))


def pieces(
    name: str,
    inos: Iterable[int],
    *,
    batch_span: int = 0,
    first: int = 0,
    total: int | None = None,
) -> Iterator[bytearray]:
    """Yields the arguments of PIECE for a whole list, or for its part from place `first` on, of
    `total`. An array("Q") is not copied."""
    numbers = inos if isinstance(inos, array.array) else array.array("Q", inos)
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    words, count, done = memoryview(numbers).cast("B").cast("I"), len(numbers), 0
    total = count if total is None else total
    while done < count or not done:
        base, width, entries = _packed(words[2 * done : 2 * done + _MOST_WORDS])
        yield ListPiece(name, first + done, total, base, width, batch_span, entries).encode()
        done += max(1, len(entries) // width)


def _packed(words: memoryview) -> tuple[int, int, bytes]:
    """Returns (base, width, entries) of the first of these numbers, as many as fit. The high words
    of inode numbers are equal in all but the largest namespaces."""
    high = words[1:2].tobytes()
    if words[1::2].tobytes() == high * (len(words) // 2):
        return int.from_bytes(high, "little") << 32, 4, words[::2].tobytes()
    return 0, 8, words[: ENTRIES_BYTES // 8 * 2].tobytes()
