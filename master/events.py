"""The stream of invalidations: stored in the store, read by position, woken by commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from cachefs.core.change_messages import MOST_FOLDERS, ChangedFolders, changed_by
from cachefs.core.errors import PositionGone
from cachefs.core.messages import Invalidate
from cachefs.core.model import NamespaceId
from master.state.records import EVERYTHING, POLICIES, TIMES
from master.store.base import Store
from master.store.snapshot import Names

READ_AT_ONCE: Final = 100
MOST_NAMES: Final = 100_000  # that are read to find the changed folders: it holds up the loop


class EventStream:
    """Any number of readers over one store. `wake` is called in the event loop after commits."""

    def __init__(self, store: Store, namespace: NamespaceId) -> None:
        self._store = store
        self._namespace = namespace
        self._arrived = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    def close(self) -> None:
        """Ends all readers."""
        self._closed = True
        self.wake()

    async def after(self, position: int) -> AsyncIterator[Invalidate]:
        """Yields events after a position (negative: from now on), until `close`. Raises
        PositionGone if some were trimmed, or if the store was set back before the position."""
        if position < 0:
            position = self.position()
        while not self._closed:
            arrived = self._arrived
            batch = self._read(position)
            for event in batch:
                position = event.seq
                yield event
            if not batch:
                await arrived.wait()

    def changed_folders(self, after: int) -> ChangedFolders:
        """Returns the folders whose names changed after a position (negative: none)."""
        now = self.position()
        if after < 0:
            return ChangedFolders(now, [])
        folders, names = set[int](), 0
        try:
            while batch := self._read(after):
                found = changed_by(batch, batch[-1].seq)
                folders.update(found.folders)
                names += sum(len(event.entries) for event in batch)
                if found.everything or len(folders) > MOST_FOLDERS or names > MOST_NAMES:
                    return ChangedFolders(now, [], everything=True)
                after = found.position
        except PositionGone:
            return ChangedFolders(now, [], everything=True)
        return ChangedFolders(after, sorted(folders))

    def position(self) -> int:
        """Returns the position of the newest event."""
        with self._store.snapshot() as reader:
            meta = Names(reader).meta()
        assert meta is not None
        return meta.seq

    def _read(self, position: int) -> list[Invalidate]:
        with self._store.snapshot() as reader:
            names = Names(reader)
            meta = names.meta()
            assert meta is not None
            if not meta.first_seq - 1 <= position <= meta.seq:
                raise PositionGone(f"event {position} is outside of {meta.first_seq} to {meta.seq}")
            found = names.events_after(position, READ_AT_ONCE)
        return [self._event(seq, entries) for seq, entries in found]

    def _event(self, seq: int, entries: list[tuple[int, bytes]]) -> Invalidate:
        if EVERYTHING in entries:
            return Invalidate(self._namespace, seq, everything=True, times=TIMES in entries)
        named = [entry for entry in entries if entry not in (POLICIES, TIMES)]
        said = len(named) < len(entries)
        return Invalidate(self._namespace, seq, named, policies=said, times=TIMES in entries)
