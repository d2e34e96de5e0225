"""Loads: bring files below paths or globs into the cache, listing and loading overlapped.

Owns the table of loads of this server (bounded; the oldest finished ones are forgotten) and their
tasks. "Succeeded" means that every file found is complete in the cache.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from cachefs.core.errors import CacheFSError, NoSpace, NotFound
from cachefs.core.globs import Selection, select
from cachefs.core.messages import LoadProgress
from cachefs.core.model import Inode, Kind, NamespaceId
from cachefs.core.services import MetadataService

log = logging.getLogger(__name__)

KEPT_LOADS = 64
KEPT_FAILURES = 10_000
FAILURES_PER_REPLY = 500
QUEUE_FILES = 2_000
FILES_IN_FLIGHT = 32


class Fetcher(Protocol):
    """What a load needs of a worker: make one file complete here. `on_bytes` hears of origin bytes.
    Raises NoSpace when the cache will not take the file, else the typed error of the failure."""

    async def fetch(
        self, namespace: NamespaceId, ino: int, *, on_bytes: Callable[[int], None]
    ) -> object: ...


class Load:
    """One load: counters that people see, and the task that works on it."""

    def __init__(self, id: int, clock: Callable[[], float]) -> None:
        self.id = id
        self._clock = clock
        self._started_at = clock()
        self._ended_at: float | None = None
        self.listing_done = False
        self.files_found = self.files_done = self.files_failed = 0
        self.bytes_found = self.bytes_done = self.bytes_fetched = 0
        self.message = ""
        self.failures: list[tuple[bytes, str]] = []
        self.full = asyncio.Event()
        self.finished = asyncio.Event()

    def found(self, inode: Inode) -> None:
        self.files_found += 1
        self.bytes_found += inode.size

    def done(self, inode: Inode) -> None:
        self.files_done += 1
        self.bytes_done += inode.size

    def fetched(self, size: int) -> None:
        self.bytes_fetched += size

    def failed(self, path: bytes, error: CacheFSError) -> None:
        self.files_failed += 1
        if len(self.failures) < KEPT_FAILURES:
            self.failures.append((path, error.one_line()))

    def no_room(self, error: NoSpace) -> None:
        self.message = self.message or error.one_line()
        self.full.set()

    def end(self) -> None:
        self._ended_at = self._clock()
        self.finished.set()

    @property
    def state(self) -> str:
        if not self.finished.is_set():
            return "running"
        complete = self.listing_done and self.files_done == self.files_found
        return "succeeded" if complete and not self.files_failed else "failed"

    def progress(self, failures_after: int = 0) -> LoadProgress:
        end = self._ended_at if self._ended_at is not None else self._clock()
        return LoadProgress(
            load=self.id,
            state=self.state,
            listing_done=self.listing_done,
            files_found=self.files_found,
            files_done=self.files_done,
            files_failed=self.files_failed,
            bytes_found=self.bytes_found,
            bytes_done=self.bytes_done,
            bytes_fetched=self.bytes_fetched,
            elapsed_s=round(end - self._started_at, 3),
            message=self.message,
            failures=self.failures[failures_after : failures_after + FAILURES_PER_REPLY],
        )


class LoadTable:
    """The loads of one server. `close` cancels what runs."""

    def __init__(self, fetcher: Fetcher, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._ids = itertools.count(1)
        self._loads: collections.OrderedDict[int, Load] = collections.OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, service: MetadataService, paths: Sequence[bytes]) -> int:
        """Starts a load of these paths or globs (below the namespace root); returns its id."""
        load = Load(next(self._ids), self._clock)
        self._loads[load.id] = load
        self._forget_old()
        task = asyncio.ensure_future(self._run(load, service, paths))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return load.id

    def progress(self, id: int, failures_after: int = 0) -> LoadProgress:
        """Raises NotFound for a load that never was, or is long over."""
        load = self._loads.get(id)
        if load is None:
            raise NotFound(f"no load {id}")
        return load.progress(failures_after)

    def status(self) -> list[dict[str, Any]]:
        names = ("load", "state", "files_found", "files_done", "files_failed", "bytes_done")
        rows = [load.progress() for load in self._loads.values()]
        return [{name: getattr(row, name) for name in names} for row in rows]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget_old(self) -> None:
        finished = [load.id for load in self._loads.values() if load.finished.is_set()]
        for id in finished[: max(0, len(self._loads) - KEPT_LOADS)]:
            del self._loads[id]

    async def _run(self, load: Load, service: MetadataService, paths: Sequence[bytes]) -> None:
        queue: asyncio.Queue[tuple[bytes, Inode] | None] = asyncio.Queue(QUEUE_FILES)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._list(load, service, paths, queue))
                for _ in range(FILES_IN_FLIGHT):
                    group.create_task(self._fetch_all(load, service, queue))
        finally:
            load.end()

    async def _list(
        self,
        load: Load,
        service: MetadataService,
        paths: Sequence[bytes],
        queue: asyncio.Queue[tuple[bytes, Inode] | None],
    ) -> None:
        whole = True
        for path in paths:
            whole &= await self._list_one(load, service, path, queue)
        load.listing_done = whole
        for _ in range(FILES_IN_FLIGHT):
            await queue.put(None)

    async def _list_one(
        self,
        load: Load,
        service: MetadataService,
        path: bytes,
        queue: asyncio.Queue[tuple[bytes, Inode] | None],
    ) -> bool:
        """Queues the files of one path or glob; False when the listing stopped before its end."""
        matched = False
        try:
            async for name, inode in _files(service, select(path)):
                if load.full.is_set():
                    return False
                matched = True
                load.found(inode)
                await queue.put((name, inode))
            if not matched:
                raise NotFound("matches no file", path=path.decode(errors="replace"))
        except CacheFSError as err:
            load.failed(path, err)
            return False
        return True

    async def _fetch_all(
        self,
        load: Load,
        service: MetadataService,
        queue: asyncio.Queue[tuple[bytes, Inode] | None],
    ) -> None:
        while (item := await queue.get()) is not None:
            path, inode = item
            if load.full.is_set():
                continue  # what is left cannot fit; it counts as found and not done
            try:
                await self._fetcher.fetch(service.namespace, inode.ino, on_bytes=load.fetched)
                load.done(inode)
            except NoSpace as err:
                load.no_room(err)
            except CacheFSError as err:
                load.failed(path, err)


async def _files(
    service: MetadataService, selection: Selection
) -> AsyncIterator[tuple[bytes, Inode]]:
    """The files that a path or glob selects, as (path, inode)."""
    found = await service.resolve(selection.base)
    if found.inode is None:
        shown = selection.base.decode(errors="replace")
        raise NotFound("no such file or directory", path=shown)
    async for batch in service.walk(found.inode.ino):
        for path, inode in batch:
            if inode.kind is Kind.FILE and selection.matches(path):
                yield path, inode
