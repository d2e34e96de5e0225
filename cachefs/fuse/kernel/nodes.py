"""Which nodeids the kernel has open, in which mode, on which backing file; and which nodeid names a
file now. Pure.

While a nodeid is open it has one mode and one backing id, so the kernel's rules on combining opens
(docs/architecture.md) cannot be broken. A file that could be read in a better way than the open
nodeid allows *moves on*: its next incarnation is what names lead to from then on, once the opener
was sent back to look the name up again (ESTALE, which the kernel retries by itself, exactly once).
A nodeid that nothing has open may take any mode again: an ino's bytes never change. Where an ino
comes back with another nonce (the server's store is an earlier one), it names another file from
then on, under its next incarnation; the nodeids before that are of the *former* file for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cachefs.core.generations import Generations
from cachefs.core.model import INO_BITS, MAX_INCARNATION, MAX_INO
from cachefs.fuse.kernel.table import Mode

MAX_MOVED: Final = 65536  # inos whose incarnation is remembered; others start at 0 again


class Node:
    """A nodeid with open handles. `backing_id` is 0 in cached mode. `tier`: where its backing file
    is, -1 where that is not known. `doubtful`: the bytes that it shows may be wrong."""

    __slots__ = ("backing_id", "doubtful", "handles", "mode", "moved", "tier")

    def __init__(self, fh: int, mode: Mode, backing_id: int, tier: int) -> None:
        self.mode = mode
        self.backing_id = backing_id
        self.tier = tier
        self.handles = {fh}
        self.moved = False
        self.doubtful = False


class Nodes:
    """The nodes of one mount."""

    def __init__(self) -> None:
        self._open: dict[int, Node] = {}
        self._open_moved: dict[int, int] = {}  # ino -> nodeids of it that are open, but its first
        self.get: Callable[[int], Node | None] = self._open.get  # the node, when it is open
        self._current: Generations[int, int] = Generations(MAX_MOVED)  # ino -> nodeid
        # ino -> nodeid: the first one of the file that has the ino now, where another had it
        self._first: Generations[int, int] = Generations(MAX_MOVED)

    def __len__(self) -> int:
        """Open nodeids."""
        return len(self._open)

    def current(self, ino: int) -> int:
        """The nodeid that names lead to."""
        return self._current.get(ino) or ino

    def is_open(self, ino: int) -> bool:
        """Is any incarnation open?"""
        return ino in self._open or ino in self._open_moved

    def open(self, nodeid: int, fh: int, mode: Mode, backing_id: int, tier: int = -1) -> None:
        """Another handle on a nodeid. Mode and backing id must be those of the others."""
        node = self._open.get(nodeid)
        if node is None:
            self._open[nodeid] = Node(fh, mode, backing_id, tier)
            if nodeid > MAX_INO:
                ino = nodeid & MAX_INO
                self._open_moved[ino] = self._open_moved.get(ino, 0) + 1
            return
        assert node.mode is mode, "one mode"
        assert node.backing_id == backing_id, "one backing file"
        node.handles.add(fh)

    def release(self, nodeid: int, fh: int) -> Node | None:
        """One handle less. The node when that was the last one: its backing id is no longer needed.
        A handle that is not there changes nothing: its release came twice."""
        node = self._open.get(nodeid)
        if node is None or fh not in node.handles:
            return None
        node.handles.remove(fh)
        if node.handles:
            return None
        del self._open[nodeid]
        if nodeid > MAX_INO:
            ino = nodeid & MAX_INO
            self._open_moved[ino] -= 1
            if not self._open_moved[ino]:
                del self._open_moved[ino]
        return node

    def doubt(self, tier: int) -> None:
        """What is open of a tier may be wrong: it is not to be joined any more."""
        for node in self._open.values():
            node.doubtful |= node.tier in (tier, -1)

    def move_on(self, nodeid: int) -> bool:
        """The file of an open nodeid should be opened under its next incarnation. False when an
        opener was sent back from this nodeid before: one that comes without a name (through
        /proc/PID/fd) would be sent back again and again, and must be served here."""
        node = self._open[nodeid]
        if node.moved:
            return False
        node.moved = True
        ino = nodeid & MAX_INO
        if self.current(ino) == nodeid:
            self._current.put(ino, self._next(nodeid))
        return True

    def given_again(self, ino: int) -> None:
        """The ino names another file from now on."""
        first = self._next(self.current(ino))
        self._current.put(ino, first)
        self._first.put(ino, first)

    def is_former(self, nodeid: int) -> bool:
        """Was this nodeid given for another file than the one that has the ino now?"""
        first = self._first.get(nodeid & MAX_INO)
        return first is not None and nodeid < first

    def adopt(self, nodeid: int, fh: int, mode: Mode, backing_id: int) -> None:
        """As `open`, for what a predecessor had open. The newest incarnation is the current one; in
        cached mode its next: the predecessor may just have sent an opener back from it, who must
        not be sent back a second time."""
        self.open(nodeid, fh, mode, backing_id)
        ino = nodeid & MAX_INO
        if nodeid >= self.current(ino):
            self._current.put(ino, self._next(nodeid) if mode is Mode.CACHED else nodeid)

    def _next(self, nodeid: int) -> int:
        """The nodeid of the next incarnation that is not open."""
        ino, number = nodeid & MAX_INO, nodeid >> INO_BITS
        for step in range(1, MAX_INCARNATION + 1):
            candidate = ((number + step) & MAX_INCARNATION) << INO_BITS | ino
            if candidate not in self._open:
                return candidate
        return nodeid

    def check_invariants(self) -> None:
        counts: dict[int, int] = {}
        for nodeid, node in self._open.items():
            if nodeid > MAX_INO:
                counts[nodeid & MAX_INO] = counts.get(nodeid & MAX_INO, 0) + 1
            assert node.handles
            assert (node.mode is Mode.PASSTHROUGH) == (node.backing_id > 0)
        assert counts == self._open_moved
