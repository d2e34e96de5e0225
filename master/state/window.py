"""The files of a job that are in flight, in the order of its listing, and its watermark. Pure.

A file has parts: one for each block and each owner of the block. The primary owner loads a block
from the origin; the other owners then copy it from the primary, so the origin serves it once. The
watermark is the last file up to which every file is settled (done, or failed with its cause). A
file is counted when the watermark passes it, so a job resumed from its record counts none twice.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from cachefs.core.errors import FileTooLarge
from cachefs.core.jobs import JobFailure
from cachefs.core.model import Origin
from cachefs.core.placement import BLOCK_BYTES, LARGEST_FILE_BYTES, block_count
from master.state import job_messages

WINDOW_FILES: Final = 4096 - 256  # leaves room for a batch of up to 256 files
WINDOW_BYTES: Final = 64 << 30  # a larger file is in the window alone


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """A place in a job's listing: the index of a path, and a file below it (b"": none yet)."""

    index: int = 0
    path: bytes = b""


START: Final = Position()


class Slot:
    """A file in flight. `round` rises when the parts handed out so far become void."""

    __slots__ = (
        "attempts",
        "done_bytes",
        "failure",
        "in_turn",
        "index",
        "left",
        "origin",
        "path",
        "round",
        "settled",
        "waits",
    )

    def __init__(self, index: int, path: bytes, origin: Origin) -> None:
        self.index = index
        self.path = path
        self.origin = origin
        self.left = 0  # parts
        self.in_turn = False  # parts of later ranks follow when the primary owner is done
        self.round = 0
        self.attempts = 1
        self.done_bytes = 0
        self.failure: JobFailure | None = None
        self.settled = False
        self.waits = False  # for a retry, or for a new check at the origin


class Part:
    """The work on a file for one worker: one block (-1: the whole file), as its owner of `rank`.
    `load`: the worker loads the block; otherwise it only checks it. `stands_in`: the next worker in
    rank after all owners does it, since the owner does not reach the origin."""

    __slots__ = ("block", "load", "rank", "round", "size", "slot", "stands_in", "tries")

    def __init__(self, slot: Slot, block: int, rank: int, size: int, *, load: bool) -> None:
        self.slot = slot
        self.block = block
        self.rank = rank
        self.size = size
        self.load = load
        self.round = slot.round
        self.stands_in = False
        self.tries = 1

    @property
    def is_void(self) -> bool:
        """True if the file was settled or restarted after this part was made."""
        return self.slot.settled or self.round != self.slot.round

    def again(self, *, stands_in: bool = False) -> Part:
        """Returns the same part as a load; counts a retry if this part was a load already."""
        part = Part(self.slot, self.block, self.rank, self.size, load=True)
        part.tries = self.tries + self.load
        part.stands_in = stands_in
        return part


class Passed(msgspec.Struct):
    """The files that one advance of the watermark passed."""

    position: Position
    files_done: int = 0
    bytes_done: int = 0
    failures: list[JobFailure] = []
    failed_bytes: int = 0


class Window:
    """The files beyond the watermark."""

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()
        self.bytes = 0  # of the files beyond the watermark
        self.ahead_files = self.ahead_bytes = 0  # done beyond it
        self.ahead_failed = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def is_full(self) -> bool:
        return len(self._slots) >= WINDOW_FILES or self.bytes >= WINDOW_BYTES

    def open(self, slot: Slot, *, load: bool) -> list[Part]:
        """Appends a file; returns its parts, to be handed out. One that is too large has failed."""
        self._slots.append(slot)
        self.bytes += slot.origin.size
        return self.parts(slot, load=load)

    def parts(self, slot: Slot, *, load: bool) -> list[Part]:
        """Resets the progress of a file; returns its first parts."""
        size, replicas = slot.origin.size, max(1, slot.origin.rule.replicas)
        self.ahead_bytes -= slot.done_bytes
        slot.done_bytes = 0
        if size > LARGEST_FILE_BYTES:  # each block would be a part in memory
            self.fail(slot, FileTooLarge.code, job_messages.too_large(size))
            return []
        slot.in_turn = load
        if size <= BLOCK_BYTES and replicas == 1:
            slot.left = 1
            return [Part(slot, -1, 0, size, load=load)]
        count = block_count(size)
        slot.left = count * replicas
        return [
            Part(
                slot,
                block if count > 1 else -1,
                rank,
                min(BLOCK_BYTES, size - block * BLOCK_BYTES),
                load=load,
            )
            for block in range(count)
            for rank in range(1 if load else replicas)
        ]

    def begin_again(self, slot: Slot, origin: Origin) -> list[Part]:
        """Restarts a file that changed at the origin; its earlier parts become void."""
        self.bytes += origin.size - slot.origin.size
        slot.origin = origin
        slot.round += 1
        slot.waits = False
        return self.parts(slot, load=True)

    def part_done(self, part: Part) -> list[Part]:
        """Records a finished part; returns the parts of later ranks that follow it."""
        slot = part.slot
        slot.left -= 1
        if part.rank == 0:
            slot.done_bytes += part.size
            self.ahead_bytes += part.size
        if not slot.left:
            slot.settled = True
            self.ahead_files += 1
        if part.rank or not slot.in_turn:
            return []
        replicas = max(1, slot.origin.rule.replicas)
        return [Part(slot, part.block, rank, part.size, load=True) for rank in range(1, replicas)]

    def fail(self, slot: Slot, code: str, cause: str) -> None:
        slot.failure = JobFailure(slot.path, code, cause, slot.attempts)
        slot.settled = True
        self.ahead_failed += 1
        self.ahead_bytes -= slot.done_bytes
        slot.done_bytes = 0

    def close(self) -> None:
        """Removes all files; results that arrive for them later are void."""
        for slot in self._slots:
            slot.settled = True
        self._slots.clear()

    def advance(self) -> Passed | None:
        """Moves the watermark past the settled files and removes them; None if it did not move."""
        slots = self._slots
        if not slots or not slots[0].settled:
            return None
        passed = Passed(START)
        while slots and slots[0].settled:
            last = slots.popleft()
            size = last.origin.size
            self.bytes -= size
            if last.failure is None:
                passed.files_done += 1
                passed.bytes_done += size
                self.ahead_files -= 1
                self.ahead_bytes -= size
            else:
                passed.failures.append(last.failure)
                passed.failed_bytes += size
                self.ahead_failed -= 1
        passed.position = Position(last.index, last.path)
        return passed
