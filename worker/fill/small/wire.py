"""What the server and the process that reads small files tell each other: lists of these, msgpack,
one list per datagram. With each `Get` comes one descriptor, of the file to write to, in their
order. The process says first of all that it is ready, with an empty list, and so it answers an
empty one.
"""

from __future__ import annotations

import mmap
from typing import Final

import msgspec

from connectors.fetch.request import NOTHING_MADE, Made
from connectors.fetch.request import Get as Request

MOST_OF_ONE: Final = 16  # gets in a datagram
MESSAGE_BYTES: Final = 192 << 10
WORDS_BYTES: Final = mmap.PAGESIZE  # of the memory that both see


class Get(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Read a file. `number` is the server's, and no other's."""

    number: int
    request: Request


class Got(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a read came to. `code`: "" or that of an error, and it did not come. `errno`: it came,
    and the file system of the file refused it (0: not)."""

    number: int
    code: str
    came_bytes: int  # of the body
    checksum: int = 0  # xxh3_64 of all of it
    allocated_bytes: int = 0  # by the file, now
    errno: int = 0
    made: Made = NOTHING_MADE


encode = msgspec.msgpack.Encoder().encode
decode_gets = msgspec.msgpack.Decoder(list[Get]).decode
decode_got = msgspec.msgpack.Decoder(list[Got]).decode
