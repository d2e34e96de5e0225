"""Reading cache files without holding up the loop: inline what memory has, in a thread the rest.

tmpfs refuses RWF_NOWAIT but never waits for a disk, so it is read inline; ext4 and its like say
EAGAIN (or give less) when a page is not in memory. One buffer serves all inline reads: what is
returned is valid until the next await.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import Final

import trio

from cachefs.client.waits import Waits
from cachefs.core.errors import BadBody

BUFFER_BYTES: Final = 1 << 20
INLINE: Final = 0  # preadv flags
IN_THREAD: Final = -1  # instead of preadv flags
_MEMORY_TYPES: Final = frozenset((b"tmpfs", b"ramfs"))
_THREADS: Final = 16


class FileReader:
    """Reads of one mount. Belongs to the loop."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._flags_of_device: dict[int, int] = {}
        self._limiter = trio.CapacityLimiter(_THREADS)

    def flags_of(self, device: int) -> int:
        """How files of a device (st_dev) are read: preadv flags, or IN_THREAD."""
        flags = self._flags_of_device.get(device)
        if flags is None:
            flags = INLINE if _type_of_device(device) in _MEMORY_TYPES else os.RWF_NOWAIT
            self._flags_of_device[device] = flags
        return flags

    def read_now(self, fd: int, flags: int, offset: int, size: int) -> memoryview | None:
        """Exactly `size` bytes (<= BUFFER_BYTES), or None when they cannot be had at once."""
        if flags == IN_THREAD or size > BUFFER_BYTES:
            return None
        view = self._view[:size]
        try:
            count = os.preadv(fd, [view], offset, flags)
        except OSError as err:
            if err.errno == errno.EOPNOTSUPP:
                self._flags_of_device[os.fstat(fd).st_dev] = IN_THREAD
            elif err.errno != errno.EAGAIN:
                raise
            return None
        return view if count == size else None

    async def read(self, fd: int, offset: int, size: int) -> bytes:
        """Exactly `size` bytes, read by a thread. Raises BadBody when the file has fewer. The
        caller keeps `fd` open; cancellation abandons the thread, whose result nobody sees."""
        in_thread = functools.partial(trio.to_thread.run_sync, abandon_on_cancel=True)
        read = functools.partial(in_thread, _read_all, fd, offset, size, limiter=self._limiter)
        return await self._waits.in_task(read)


def _read_all(fd: int, offset: int, size: int) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) == size:
        return data
    parts = [data]
    have = len(data)
    while have < size:
        part = os.pread(fd, size - have, offset + have)
        if not part:
            raise BadBody(f"a cache file ends at {offset + have}, {size - have} bytes early")
        parts.append(part)
        have += len(part)
    return b"".join(parts)


def _type_of_device(device: int) -> bytes:
    """The file system type of a mounted device, b"" when it is not found."""
    number = b"%d:%d" % (os.major(device), os.minor(device))
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            fields, _, rest = line.partition(b" - ")
            if fields.split()[2] == number:
                return rest.split()[0]
    return b""
