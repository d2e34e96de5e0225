"""The nodeids that the kernel has open, with mode and backing file, and the current nodeid of each
file. Pure.

While a nodeid is open it has one mode and one backing id, so opens cannot break the kernel's rules
on combining them (docs/architecture.md). If a file can be read in a better way than its open nodeid
allows, it *moves on*: its name leads to the next incarnation from then on. The opener gets ESTALE,
and the kernel then looks the name up again, exactly once. A closed nodeid may take any mode: an
ino's bytes never change. If the metadata store was rolled back, an ino may return with another
nonce: it then belongs to another file, under its next incarnation. Its earlier nodeids belong to
the *former* file for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cachefs.core.model import INO_BITS, MAX_INCARNATION, MAX_INO
from cachefs.core.two_generation_map import TwoGenerationMap
from cachefs.fuse.kernel.table import Mode

MAX_MOVED: Final = 65536  # inos with a recorded incarnation; others start at 0 again


class Node:
    """A nodeid with open handles. `backing_id` is 0 in cached mode. `tier` has its backing file; -1
    if unknown. `doubtful`: its bytes may be wrong."""

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
        self._open_moved: dict[int, int] = {}  # ino -> count of its open nodeids except the ino
        self.get: Callable[[int], Node | None] = self._open.get  # the node if it is open
        self._current: TwoGenerationMap[int, int] = TwoGenerationMap(MAX_MOVED)  # ino -> nodeid
        # ino -> first nodeid of its file, for inos that belonged to another file before
        self._first: TwoGenerationMap[int, int] = TwoGenerationMap(MAX_MOVED)

    def __len__(self) -> int:
        """Returns the number of open nodeids."""
        return len(self._open)

    def current(self, ino: int) -> int:
        """Returns the nodeid to which names of the ino lead."""
        return self._current.get(ino) or ino

    def has_moved(self) -> bool:
        """Returns whether `current` of some ino is another nodeid."""
        return bool(self._current)

    def is_open(self, ino: int) -> bool:
        """Returns whether any incarnation of the ino is open."""
        return ino in self._open or ino in self._open_moved

    def open(self, nodeid: int, fh: int, mode: Mode, backing_id: int, tier: int = -1) -> None:
        """Adds a handle to a nodeid. Its mode and backing id must equal those of the others."""
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
        """Removes a handle. Returns the node after the last one: its backing id is then unused.
        Ignores an unknown handle: its release was sent twice."""
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
        """Marks the open nodes of a tier as doubtful: further opens must not join them."""
        for node in self._open.values():
            node.doubtful |= node.tier in (tier, -1)

    def move_on(self, nodeid: int) -> bool:
        """Moves the file of an open nodeid to its next incarnation. Returns False when an opener
        has already received ESTALE for this nodeid: one without a name (through /proc/PID/fd)
        would get ESTALE every time, so this nodeid must serve it."""
        node = self._open[nodeid]
        if node.moved:
            return False
        node.moved = True
        ino = nodeid & MAX_INO
        if self.current(ino) == nodeid:
            self._current.put(ino, self._next(nodeid))
        return True

    def reassign_ino(self, ino: int) -> None:
        """Moves the ino to another file, under its next incarnation."""
        first = self._next(self.current(ino))
        self._current.put(ino, first)
        self._first.put(ino, first)

    def is_former(self, nodeid: int) -> bool:
        """Returns whether this nodeid belongs to a former file of its ino."""
        first = self._first.get(nodeid & MAX_INO)
        return first is not None and nodeid < first

    def adopt(self, nodeid: int, fh: int, mode: Mode, backing_id: int) -> None:
        """Adds a handle that a predecessor had open. The newest incarnation becomes the current
        one; in cached mode the one after it does. The predecessor may have sent ESTALE for the
        newest one, and a second ESTALE would reach the opener."""
        self.open(nodeid, fh, mode, backing_id)
        ino = nodeid & MAX_INO
        if nodeid >= self.current(ino):
            self._current.put(ino, self._next(nodeid) if mode is Mode.CACHED else nodeid)

    def _next(self, nodeid: int) -> int:
        """Returns the nodeid of the next incarnation that is not open."""
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
