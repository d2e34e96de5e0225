"""Reads cache files without blocking the loop: inline if the pages are in memory, otherwise in a
thread with a deadline.

tmpfs refuses RWF_NOWAIT but never waits for a disk, so it is read inline. ext4 and similar file
systems return EAGAIN (or fewer bytes) when a page is not in memory. All inline reads share one
buffer: their result is valid until the next await.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import Final

import trio

from cachefs.client.call_waits import Waits
from cachefs.core.errors import BadBody, DeadlineExceeded
from cachefs.fuse.file_systems import MEMORY, file_system_of

BUFFER_BYTES: Final = 1 << 20
INLINE: Final = 0  # preadv flags
IN_THREAD: Final = -1  # instead of preadv flags
LIMIT_S: Final = 5.0  # of one read: a disk that takes longer counts as hung
_THREADS: Final = 16
_MOST_STUCK: Final = 48  # threads with a hung read that do not count against `_THREADS`


class FileReader:
    """The reads of one mount. Belongs to the loop."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._flags_of_device: dict[int, int] = {}
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._stuck: list[_Read] = []
        self.limit_s = LIMIT_S

    def flags_of(self, device: int, fd: int) -> int:
        """Returns how to read `fd`, on a device (st_dev): preadv flags, or IN_THREAD."""
        flags = self._flags_of_device.get(device)
        if flags is None:
            flags = INLINE if file_system_of(fd) in MEMORY else os.RWF_NOWAIT
            self._flags_of_device[device] = flags
        return flags

    @staticmethod
    def flags_without_fstat(fd: int) -> int:
        """Returns flags as `flags_of`, for a file system on which even fstat may hang."""
        return INLINE if file_system_of(fd) in MEMORY else IN_THREAD

    def read_now(self, fd: int, flags: int, offset: int, size: int) -> memoryview | None:
        """Returns exactly `size` bytes (<= BUFFER_BYTES), or None if that would block."""
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
        """Returns exactly `size` bytes, read by a thread. Raises BadBody when the file has fewer,
        DeadlineExceeded when the disk hangs. The caller keeps `fd` open; cancellation abandons the
        thread and discards its result."""
        return await self._waits.in_task(functools.partial(self._read, _Read(fd, offset, size)))

    async def _read(self, read: _Read) -> bytes:
        self._stuck = [one for one in self._stuck if not one.ended]
        self._limiter.total_tokens = _THREADS + min(len(self._stuck), _MOST_STUCK)
        with trio.move_on_after(self.limit_s):
            return await trio.to_thread.run_sync(
                read.run, abandon_on_cancel=True, limiter=self._limiter
            )
        if read.begun:
            self._stuck.append(read)
        raise DeadlineExceeded("the cache disk does not answer")


class _Read:
    """A read by a thread."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self._fd = fd
        self._offset = offset
        self._size = size
        self.begun = self.ended = False

    def run(self) -> bytes:
        self.begun = True
        try:
            return _read_all(self._fd, self._offset, self._size)
        finally:
            self.ended = True


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
