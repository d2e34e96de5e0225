"""The directory walks in progress. A task per walk prepares batches; each call returns one.

A cursor is the walk's random name and the number of a batch. The walk keeps its last batch, so that
a caller can repeat a call whose reply was lost. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final

from cachefs.core.cluster import Walked
from cachefs.core.errors import PositionGone, Throttled
from cachefs.core.model import Inode

MAX_WALKS: Final = 256
IDLE_S: Final = 60.0
FILES_AT_ONCE: Final = 2000
GATHER_S: Final = 0.1  # a batch with some files waits for more
PATIENCE_S: Final = 20.0  # then the reply has no files: the origin is slow

Files = list[tuple[bytes, Inode]]
_CURSOR = struct.Struct(">16sQ")


class Walks:
    """The walks, at most `MAX_WALKS`. Every `IDLE_S`, a sweep ends those idle for `IDLE_S`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._walks: dict[bytes, _Walk] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._walks)

    async def begin(
        self,
        ino: int,
        files: AsyncIterator[Files],
        limit: int = 0,
        unlisted: Collection[int] = (),
    ) -> Walked:
        """Returns the first batch of a new walk. A batch has at most `limit` files (0:
        FILES_AT_ONCE). `files` adds to `unlisted`; each reply has its size. Raises Throttled if
        `MAX_WALKS` are in progress, and what the walk raises."""
        self._make_room()
        limit = min(limit, FILES_AT_ONCE) if limit > 0 else FILES_AT_ONCE
        walk, name = _Walk(ino, files, self._clock(), limit, unlisted), os.urandom(16)
        self._walks[name] = walk
        self._arm()
        try:
            return await self._step(name, walk, 0)
        finally:
            if walk.is_over or not walk.step:  # all in one batch, failed or cancelled
                self._end(name)

    async def go_on(self, ino: int, cursor: bytes) -> Walked:
        """Returns the next batch, or the last one again to a repeated call. Raises PositionGone if
        the walk has ended or has another directory, and what the walk raises."""
        if len(cursor) != _CURSOR.size:
            raise PositionGone("not a cursor of a walk")
        name, step = _CURSOR.unpack(cursor)
        walk = self._walks.get(name)
        if walk is None or walk.ino != ino or step not in (walk.step, walk.step - 1):
            raise PositionGone("the walk has ended", remedy="start it again")
        return await self._step(name, walk, step)

    def end_idle(self) -> None:
        """Ends idle walks. A timer calls it every `IDLE_S` as long as a walk exists."""
        self._sweep = None
        now = self._clock()
        for name, walk in [*self._walks.items()]:
            if walk.used_at <= now - IDLE_S:
                self._end(name)
        self._arm()

    def _arm(self) -> None:
        if self._sweep is None and self._walks:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self.end_idle)

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = [walk.task for walk in self._walks.values()]
        for name in [*self._walks]:
            self._end(name)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _step(self, name: bytes, walk: _Walk, step: int) -> Walked:
        walk.used_at = self._clock()
        files, is_last = await walk.batch(step)
        walk.used_at = self._clock()
        cursor = b"" if is_last else _CURSOR.pack(name, step + 1)
        return Walked(files, cursor, len(walk.unlisted))

    def _make_room(self) -> None:
        if len(self._walks) < MAX_WALKS:
            return
        for name, walk in self._walks.items():
            if walk.is_over:
                return self._end(name)
        raise Throttled(f"{MAX_WALKS} walks are under way")

    def _end(self, name: bytes) -> None:
        walk = self._walks.pop(name, None)
        if walk is not None:
            walk.task.cancel()


class _Walk:
    """A walk, and the task that keeps its next batch ready."""

    def __init__(
        self,
        ino: int,
        files: AsyncIterator[Files],
        now: float,
        limit: int,
        unlisted: Collection[int],
    ) -> None:
        self.ino = ino
        self.unlisted = unlisted
        self._limit = limit
        self.step = 0
        self.used_at = now
        self._ready: Files = []
        self._last: tuple[Files, bool] = ([], False)
        self._stirred = asyncio.Event()
        self._lock = asyncio.Lock()  # held by `batch`: a repeated call waits for the first
        self.task = asyncio.ensure_future(self._walk(files))
        self.task.add_done_callback(lambda _: self._stir())

    @property
    def is_over(self) -> bool:
        """True if a call has taken the last batch."""
        return self._last[1]

    async def batch(self, step: int) -> tuple[Files, bool]:
        """Returns (files, whether these are the last). Raises a failure of the walk once all files
        before it are returned, and again at each repeated call. Cancellation takes no files."""
        async with self._lock:
            if step < self.step:
                return self._last
            await self._wait(1, PATIENCE_S)
            if self._ready:
                await self._wait(self._limit, GATHER_S)
            return self._take()

    def _take(self) -> tuple[Files, bool]:
        files, self._ready = self._ready[: self._limit], self._ready[self._limit :]
        is_last = self.task.done() and not self._ready
        if is_last and not files:
            self._raise_failure()
        is_last = is_last and self._is_whole()
        self._stir()
        self._last = (files, is_last)
        self.step += 1
        return self._last

    def _is_whole(self) -> bool:
        return not self.task.cancelled() and self.task.exception() is None

    def _raise_failure(self) -> None:
        if self.task.cancelled():
            raise PositionGone("the walk has ended", remedy="start it again")
        self.task.result()

    async def _walk(self, files: AsyncIterator[Files]) -> None:
        async for batch in files:
            self._ready += batch
            self._stir()
            while len(self._ready) >= self._limit:
                await self._stirred.wait()

    async def _wait(self, count: int, limit_s: float) -> None:
        """Waits until `count` files are ready, the task has ended, or `limit_s` has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while len(self._ready) < count and not self.task.done():
                    await self._stirred.wait()

    def _stir(self) -> None:
        stirred, self._stirred = self._stirred, asyncio.Event()
        stirred.set()
