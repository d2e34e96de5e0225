"""The feeding walk of a job: reads the store behind the counting walk and fills the job's window,
once to load and once to check.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.core.globs import Selection, select
from cachefs.core.model import Kind, Origin
from master.jobs.job_context import JobContext
from master.jobs.walk import OrderedWalk, SelectedFiles, StoredPages
from master.state.jobs import Job
from master.state.window import Part, Position
from master.store import jobs as table

PATHS_AT_ONCE: Final = 256
FILES_AT_ONCE: Final = 256


class Feeder:
    """The feeding walk. `hand` receives parts to assign to workers. `wait` returns after the job
    changed, `save` when the job's decisions are durable. The walk calls `moved` after a pass."""

    def __init__(
        self,
        ground: JobContext,
        job: Job,
        hand: Callable[[list[Part]], None],
        wait: Callable[[], Awaitable[None]],
        save: Callable[[], Awaitable[None]],
        moved: Callable[[], None],
    ) -> None:
        self._ground = ground
        self._job = job
        self._hand = hand
        self._wait = wait
        self._save = save
        self._moved = moved

    async def run(self) -> None:
        """Feeds until the job ends. After a cancellation a new run starts at the watermark."""
        job = self._job
        while job.runs:
            checks = job.checks
            if checks:
                await self._save()  # failures are looked up in the store
            await self._pass(job.watermark)
            job.fed()
            self._moved()
            while job.runs and job.checks == checks:
                await self._wait()

    async def _pass(self, start: Position) -> None:
        """Feeds every selected file after a position."""
        async for index, text in self._texts(start.index):
            after = start.path if index == start.index else b""
            while self._is_ahead(index):
                await self._wait()
            await self._feed_one(index, select(text), after)

    def _is_ahead(self, index: int) -> bool:
        """Returns whether the counting walk has not reached this path yet."""
        record = self._job.record
        if record.counting_done or record.counted.index > index:
            return False
        return record.counted.index < index or not record.counted.path

    async def _texts(self, index: int) -> AsyncIterator[tuple[int, bytes]]:
        while True:
            with self._ground.store.snapshot() as reader:
                texts = table.paths(reader, self._job.record.job, index, PATHS_AT_ONCE)
            for text in texts:
                yield index, text
                index += 1
            if not texts:
                if not self._job.record.paths_open:
                    return
                await self._wait()

    async def _feed_one(self, index: int, selection: Selection, after: bytes) -> None:
        base = selection.base
        known = self._ground.known(base)
        if known is None:
            return  # the counting walk recorded the failure
        directory, inode = known
        if inode.kind is not Kind.DIRECTORY:
            above, _, name = base.rpartition(b"/")
            if after != base:
                await self._take(index, selection, SelectedFiles(directory, above, [(name, inode)]))
            return
        source = StoredPages(self._ground.store, lambda: self._come(index))
        walk = OrderedWalk(self._ground.store, source, _passed_over)
        walk.begin(inode.ino, base, after)
        try:
            while (found := await walk.next()) is not None:
                if found.files:
                    await self._take(index, selection, found)
                else:
                    await self._wait()
        except CacheFSError:
            return  # the directory was removed

    def _come(self, index: int) -> bytes | None:
        """Returns the position of the counting walk below a path; None: it has finished it."""
        record = self._job.record
        if record.counting_done or record.counted.index > index:
            return None
        return record.counted.path

    async def _take(self, index: int, selection: Selection, found: SelectedFiles) -> None:
        files = found.files
        for start in range(0, len(files), FILES_AT_ONCE):
            while self._job.window.is_full:
                await self._wait()
            origins = self._ground.origins(
                found.directory, found.path, files[start : start + FILES_AT_ONCE]
            )
            self._hand(self._job.feed(self._wanted(index, selection, origins)))

    def _wanted(
        self, index: int, selection: Selection, origins: list[tuple[bytes, Origin]]
    ) -> list[tuple[int, bytes, Origin]]:
        """Returns the selected files, in the second pass without those that failed."""
        record = self._job.record
        wanted = [(index, *one) for one in origins if selection.matches(one[0])]
        if not (self._job.checks and record.files_failed and wanted):
            return wanted
        with self._ground.store.snapshot() as reader:
            return [
                one
                for one in wanted
                if not table.has_failed(reader, record.job, record.round, one[1])
            ]


def _passed_over(path: bytes, err: CacheFSError) -> None:
    """Ignores a failure: the counting walk recorded it."""
