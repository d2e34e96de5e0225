"""How cache files go: evicted when nobody has them, dropped even when somebody has.

Order: unpublish, so that nobody new can open it; ask the kernel whether anybody has it; delete the
record and commit; unlink. A crash in between leaves an unpublished file (published again at its
next open) or a file without a record (swept at the next start), never a record without its bytes
and never a published file without a record. Nothing that anybody can read is ever punched or
truncated. Blocking.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from worker.store import filesystem
from worker.store.changes import DropFile
from worker.store.directory import TierDirectory
from worker.store.publishing import publish_again
from worker.store.writer import Writer

LEASE_LOOKS: Final = 200  # whoever asks by a lease whether a file is in use holds it for moments
LEASE_PAUSE_S: Final = 0.001


@dataclass(slots=True)
class Evicted:
    """What became of a batch, by name. `gone`: the bytes that the index had for each; what is in
    neither was not looked at."""

    gone: dict[str, int] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Dropped:
    """A file that was dropped. `recorded_bytes`: what the index had for it; `allocated_bytes`: what
    it takes. `fd` is -1 when it is gone, else a read-only descriptor of the unlinked file that
    somebody still has open: whoever gets it closes it."""

    recorded_bytes: int
    allocated_bytes: int = 0
    fd: int = -1


def evict(
    tier: TierDirectory,
    writer: Writer,
    names: Sequence[str],
    need_bytes: int,
    may_go_on: Callable[[], bool],
) -> Evicted:
    """Evicts of `names`, in order, until `need_bytes` are free or `may_go_on` (the master's
    permission) ends. Raises OSError: what was not yet unlinked is published again, unless its
    record is distrusted by now."""
    result = Evicted()
    victims: dict[str, tuple[int, bool]] = {}
    for name in names:
        if need_bytes <= 0 or not may_go_on():
            break
        published = tier.unpublish(name)
        if is_busy(tier, name):
            result.busy.append(name)
            if published:
                publish_again(tier, name)
            continue
        record = tier.index.get(bytes.fromhex(name))
        size_bytes = record.allocated_bytes if record is not None else 0
        victims[name] = (size_bytes, published)
        need_bytes -= size_bytes
    try:
        writer.write([DropFile(bytes.fromhex(name)) for name in victims])
    except OSError:
        for name, (_, published) in victims.items():
            if published:
                publish_again(tier, name)
        raise
    for name, (size_bytes, _) in victims.items():
        tier.unlink(name)
        result.gone[name] = size_bytes
    return result


def is_busy(tier: TierDirectory, name: str) -> bool:
    """Has somebody the file open or mapped?"""
    try:
        fd = tier.open_file(name, os.O_RDONLY)
    except BlockingIOError:  # under a lease that somebody else asked for
        return True
    if fd is None:
        return False
    try:
        return not filesystem.is_unused(fd)
    finally:
        os.close(fd)


def drop(tier: TierDirectory, writer: Writer, names: Sequence[str]) -> dict[str, Dropped]:
    """Removes the files from the tier, whoever has them open. Nothing is submitted for them any
    more. Raises OSError before anything was unlinked."""
    writer.write([])  # what was on its way is published by now: it is unpublished with the others
    found: dict[str, _Found] = {}
    try:
        for name in names:
            found[name] = _Found(tier, name)
        writer.write([DropFile(bytes.fromhex(name)) for name in names])
    except OSError:
        for one in found.values():
            one.close()
        raise
    return {name: one.unlink(tier, name) for name, one in found.items()}


class _Found:
    """A file on its way out: unpublished, and held by a descriptor."""

    def __init__(self, tier: TierDirectory, name: str) -> None:
        tier.unpublish(name)
        self._fd = _open(tier, name)
        record = tier.index.get(bytes.fromhex(name))
        self._recorded_bytes = record.allocated_bytes if record is not None else 0

    def unlink(self, tier: TierDirectory, name: str) -> Dropped:
        dropped = Dropped(self._recorded_bytes)
        if self._fd is None:
            return dropped
        tier.unlink(name)
        dropped.allocated_bytes = filesystem.allocated_bytes(self._fd)
        if filesystem.is_unused(self._fd):
            os.close(self._fd)
        else:
            dropped.fd = self._fd
        return dropped

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


def _open(tier: TierDirectory, name: str) -> int | None:
    """A descriptor that keeps it; None when it is gone. Raises OSError."""
    for _ in range(LEASE_LOOKS):
        try:
            return tier.open_file(name, os.O_RDONLY)
        except BlockingIOError:
            time.sleep(LEASE_PAUSE_S)
    return tier.open_file(name, os.O_RDONLY)
