"""Closes segments of idle open files: their descriptors take up scratch space of the server until
they are closed. The only I/O is closing descriptors."""

from __future__ import annotations

from typing import Final

import trio

from cachefs.fuse.handles import FileHandle

TICK_S: Final = 0.25
IDLE_TICKS: Final = 8  # without a read, then the segments of a handle are closed
SHORT_TICKS: Final = 1  # the same when the server allows one segment per handle


class SegmentReclaimer:
    """The handles of one mount that have segments, with their idle ticks. Belongs to the loop."""

    def __init__(self) -> None:
        self._idle_ticks: dict[FileHandle, int] = {}
        self._filled = trio.Event()

    def __len__(self) -> int:
        return len(self._idle_ticks)

    def note(self, handle: FileHandle) -> None:
        """Adds a handle that has just received a segment."""
        self._idle_ticks[handle] = 0
        self._filled.set()

    def tick(self) -> None:
        """Closes the segments of handles without a read for more than the limit of ticks."""
        for handle, ticks in [*self._idle_ticks.items()]:
            ticks = 0 if handle.was_read else ticks + 1
            handle.was_read = False
            if ticks > (SHORT_TICKS if handle.keep == 1 else IDLE_TICKS):
                handle.give_back()
            if handle.segments:
                self._idle_ticks[handle] = ticks
            else:
                del self._idle_ticks[handle]

    async def run(self) -> None:
        """Ticks while any handle has segments, until cancelled."""
        while True:
            await self._filled.wait()
            self._filled = trio.Event()
            while self._idle_ticks:
                await trio.sleep(TICK_S)
                self.tick()
