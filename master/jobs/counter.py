"""The counting walk of a job: counts the files that its paths select, fresh from the origins.

It stores the names that the feeding walk reads later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from cachefs.core.errors import CacheFSError, NotFound
from cachefs.core.globs import Selection, select
from cachefs.core.messages import Found as Answer
from cachefs.core.model import Inode, Kind
from cachefs.core.policies import shown
from master.jobs.job_context import JobContext
from master.jobs.walk import FreshPages, OrderedWalk, SelectedFiles
from master.state.jobs import Job
from master.state.window import Position
from master.store import jobs as table

PATHS_AT_ONCE: Final = 256
RESOLVED_AT_ONCE: Final = 32


class Counter:
    """The counting walk. It calls `moved` after each step; `wait` returns after the job changed."""

    def __init__(
        self,
        ground: JobContext,
        job: Job,
        moved: Callable[[], None],
        wait: Callable[[], Awaitable[None]],
    ) -> None:
        self._ground = ground
        self._job = job
        self._moved = moved
        self._wait = wait

    async def run(self) -> None:
        """Counts to the end of the list of paths, starting at the recorded position."""
        job = self._job
        if job.record.counting_done:
            return
        after = job.record.counted
        async for index, selection, found in self._selected(after.index):
            start = after.path if index == after.index else b""
            await self._count(index, selection, found, start)
            job.counted(Position(index + 1), 0, 0, 0, matched=False)
            self._moved()
        job.counting_ended()
        self._moved()

    async def _selected(
        self, index: int
    ) -> AsyncIterator[tuple[int, Selection, Answer | CacheFSError]]:
        """Yields the job's paths from an index on, each with the lookup of its base."""
        job = self._job.record.job
        turns = asyncio.Semaphore(RESOLVED_AT_ONCE)
        while True:
            with self._ground.store.snapshot() as reader:
                texts = table.paths(reader, job, index, PATHS_AT_ONCE)
            if not texts:
                if not self._job.record.paths_open:
                    return
                await self._wait()
                continue
            selections = [select(text) for text in texts]
            found = await asyncio.gather(*(self._resolve(turns, one.base) for one in selections))
            for selection, answer in zip(selections, found, strict=True):
                yield index, selection, answer
                index += 1

    async def _resolve(self, turns: asyncio.Semaphore, base: bytes) -> Answer | CacheFSError:
        async with turns:
            try:
                return await self._ground.resolve(base)
            except CacheFSError as err:
                return err

    async def _count(
        self, index: int, selection: Selection, found: Answer | CacheFSError, after: bytes
    ) -> None:
        """Counts the files that one path selects."""
        base = selection.base
        if isinstance(found, CacheFSError):
            self._note(base, found)
        elif found.inode is None:
            self._note(base, NotFound("no such file or directory", path=shown(base)))
        elif found.inode.kind is not Kind.DIRECTORY:
            above, _, name = base.rpartition(b"/")
            if after != base:
                self._add(index, selection, SelectedFiles(0, above, [(name, found.inode)]))
        else:
            await self._count_below(index, selection, found.inode, after)
        if selection.pattern is not None and not self._job.record.matched:
            self._note(base, NotFound("the pattern matches no file", path=shown(base)))

    def _note(self, path: bytes, err: CacheFSError) -> None:
        """Records a failure, unless an earlier run of the walk recorded it."""
        record = self._job.record
        with self._ground.store.snapshot() as reader:
            known = table.has_failed(reader, record.job, record.round, path)
        if not known:
            self._job.note(path, err)

    async def _count_below(
        self, index: int, selection: Selection, inode: Inode, after: bytes
    ) -> None:
        source = FreshPages(self._ground.list_dir, self._ground.list_ahead)
        walk = OrderedWalk(self._ground.store, source, self._note)
        walk.begin(inode.ino, selection.base, after)
        try:
            while (found := await walk.next()) is not None:
                if found.files:
                    self._add(index, selection, found)
        except CacheFSError as err:
            self._note(selection.base, err)

    def _add(self, index: int, selection: Selection, found: SelectedFiles) -> None:
        head = found.path + b"/" if found.path else b""
        files = size = needed = 0
        for name, inode in found.files:
            if inode.kind is Kind.FILE and selection.matches(head + name):
                files += 1
                size += inode.size
                if len(self._ground.policies):
                    needed += inode.size * self._ground.replicas(found.path, name)
        needed = needed if len(self._ground.policies) else size
        matched = self._job.record.matched or files > 0
        last = head + found.files[-1][0]
        self._job.counted(Position(index, last), files, size, needed, matched=matched)
        self._moved()
