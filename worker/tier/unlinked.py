"""Files that were unlinked while open: accounted until the kernel reports that no process has them
open. Owned by the loop; each keeps one descriptor."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from worker.store.filesystem import is_unused

if TYPE_CHECKING:
    from worker.tier.contents import Contents
    from worker.tier.context import TierContext
    from worker.tier.disk import TierDisk

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0


@dataclass(slots=True)
class _Leftover:
    fd: int
    allocated_bytes: int
    pause_s: float
    due_s: float


class UnlinkedOpenFiles:
    """The unlinked files: at most one for each dropped file that a client has open."""

    def __init__(self, context: TierContext, disk: TierDisk, contents: Contents) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._items: list[_Leftover] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, fd: int, allocated_bytes: int) -> None:
        """Takes over a descriptor of an unlinked file that is accounted as unlinked already."""
        due_s = self._context.monotonic()
        self._items.append(_Leftover(fd, allocated_bytes, FIRST_PAUSE_S, due_s))
        self.check()

    def check(self, *, urgent: bool = False) -> None:
        """Releases files that no process has open; checks each with growing pauses, or all when
        room is urgent."""
        now = self._context.monotonic()
        kept = []
        for item in self._items:
            if item.due_s > now and not urgent:
                kept.append(item)
            elif is_unused(item.fd):
                self._let_go(item)
            else:
                item.due_s = now + item.pause_s
                item.pause_s = min(2 * item.pause_s, LONGEST_PAUSE_S)
                kept.append(item)
        self._items = kept

    def _let_go(self, item: _Leftover) -> None:
        done = self._disk.threads.run(os.close, item.fd)  # freeing a large file takes time

        def account(_: object) -> None:
            self._contents.close_unlinked(item.allocated_bytes)

        done.add_done_callback(account)

    def close(self) -> None:
        for item in self._items:
            os.close(item.fd)
        self._items.clear()
