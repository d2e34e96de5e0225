"""The removal of cache files: `evict` skips files in use, `drop` removes them too.

Order: unpublish, so that no client can open the file; check with the kernel whether it is in use;
delete the record and commit; unlink. A crash in between leaves an unpublished file (published again
at its next open) or a file without a record (removed at the next start). It never leaves a record
without its bytes or a published file without a record. A readable file is never punched or
truncated. Blocking.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from worker.store import filesystem
from worker.store.changes import DropFile
from worker.store.directory import TierDirectory
from worker.store.publishing import publish_trusted
from worker.store.records import FileRecord
from worker.store.writer import Writer

LEASE_LOOKS: Final = 200  # `is_unused` in another thread holds a lease for a moment
LEASE_PAUSE_S: Final = 0.001

MayGoOn = Callable[[], bool]  # asked in the thread, before anything is removed


@dataclass(slots=True)
class Evicted:
    """The result of a batch, by name. `gone`: the evicted files and their recorded bytes. `busy`:
    the files in use. A name in neither was not tried."""

    gone: dict[str, int] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Dropped:
    """A dropped file, with its bytes by the index and by the file system. `fd`: a read-only
    descriptor of the unlinked file if it is still in use, which the caller closes; -1: removed."""

    recorded_bytes: int
    allocated_bytes: int = 0
    fd: int = -1


def evict(
    tier: TierDirectory,
    writer: Writer,
    names: Sequence[str],
    need_bytes: int,
    may_go_on: MayGoOn,
) -> Evicted:
    """Evicts files of `names`, in order, until `need_bytes` are free or `may_go_on` (the master's
    permission) returns False. Raises OSError if a file cannot be looked at, or the commit fails;
    the files are then published again, unless their records are distrusted."""
    result = Evicted()
    victims: dict[str, FileRecord | None] = {}
    published: set[str] = set()
    try:
        for name in names:
            if need_bytes <= 0 or not may_go_on():
                break
            record = victims[name] = tier.index.get(bytes.fromhex(name))
            if tier.unpublish(name):
                published.add(name)
            if is_busy(tier, name):
                result.busy.append(name)
                _publish_again(tier, {name: victims.pop(name)}, published)
            elif record is not None:
                need_bytes -= record.allocated_bytes
        writer.write([DropFile(bytes.fromhex(name)) for name in victims])
    except OSError:
        _publish_again(tier, victims, published)
        raise
    for name, record in victims.items():
        tier.unlink(name)
        result.gone[name] = record.allocated_bytes if record is not None else 0
    return result


def _publish_again(
    tier: TierDirectory, records: Mapping[str, FileRecord | None], published: Collection[str]
) -> None:
    """Publishes those files that were published before."""
    for name, record in records.items():
        if record is not None and name in published:
            publish_trusted(tier, name, record.epoch)


def is_busy(tier: TierDirectory, name: str) -> bool:
    """Returns whether the file is open or mapped."""
    try:
        fd = tier.open_file(name, os.O_RDONLY)
    except BlockingIOError:  # another thread or process holds a lease on it
        return True
    if fd is None:
        return False
    try:
        return not filesystem.is_unused(fd)
    finally:
        os.close(fd)


def always() -> bool:
    return True


def drop(
    tier: TierDirectory,
    writer: Writer,
    names: Sequence[str],
    may_go_on: MayGoOn = always,
) -> dict[str, Dropped]:
    """Removes files from the tier even if they are open. The caller submits no more changes for
    them. Raises OSError before any file was unlinked: BlockingIOError if `may_go_on` (the master's
    permission) returns False."""
    writer.write([])  # waits until queued changes are published, so that they are unpublished here
    if not may_go_on():
        raise BlockingIOError(errno.EAGAIN, "the permission to drop files has ended")
    found: dict[str, _Removal] = {}
    try:
        for name in names:
            found[name] = _Removal(tier, name)
        writer.write([DropFile(bytes.fromhex(name)) for name in names])
    except OSError:
        for one in found.values():
            one.close()
        raise
    return {name: one.unlink(tier, name) for name, one in found.items()}


class _Removal:
    """A file that is being removed: unpublished, and held by a descriptor."""

    def __init__(self, tier: TierDirectory, name: str) -> None:
        record = tier.index.get(bytes.fromhex(name))
        self._recorded_bytes = record.allocated_bytes if record is not None else 0
        tier.unpublish(name)
        self._fd = _open(tier, name)  # the last: nobody would close it

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
    """Opens the file, after a wait for leases; None if it does not exist. Raises OSError."""
    for _ in range(LEASE_LOOKS):
        try:
            return tier.open_file(name, os.O_RDONLY)
        except BlockingIOError:
            time.sleep(LEASE_PAUSE_S)
    return tier.open_file(name, os.O_RDONLY)
