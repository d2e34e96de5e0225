"""A running job: its two walks, its stats of changed files and the writes of its progress.

All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable

from cachefs.core.errors import CacheFSError, NotFound
from cachefs.core.jobs import JobState, TaskResult
from cachefs.core.model import Kind, Origin
from master.jobs.counter import Counter
from master.jobs.feeder import Feeder
from master.jobs.job_context import JobContext
from master.state.jobs import Effects, Job
from master.state.task_dispatcher import TaskBatch, TaskDispatcher
from master.state.window import Part, Slot
from master.store import jobs as table

log = logging.getLogger("cachefs.jobs")

LOOKS_AT_ONCE = 16
SAVE_AGAIN_S = 5.0


class Clocks:
    """The clocks of a job. `now`: monotonic, `wall`: wall time; both in seconds."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self.now = now
        self.wall = wall


class Runner:
    """A job in this run of the master. The runner calls `handed` after it added parts to the
    dispatcher, or cancelled them. `room` returns the total cache capacity in bytes, if known,
    `owners` the number of workers that own blocks."""

    def __init__(
        self,
        ground: JobContext,
        job: Job,
        desk: TaskDispatcher,
        clocks: Clocks,
        handed: Callable[[], None],
        room: Callable[[], int | None],
        owners: Callable[[], int],
    ) -> None:
        self.job = job
        self._ground = ground
        self._desk = desk
        self._clocks = clocks
        self._handed = handed
        self._room = room
        self._owners = owners
        self._stirred = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looks = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._saving = asyncio.Lock()
        self._saves: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts both walks at the recorded positions."""
        job = self.job
        self._desk.begin(job.order)
        counter = Counter(self._ground, job, self._moved, self.wait)
        feeder = Feeder(self._ground, job, self._hand, self.wait, self.save, self._moved)
        self._spawn(counter.run())
        self._spawn(feeder.run())

    def update(self) -> None:
        """Applies changed settings of the job."""
        if self.job.runs:
            self._desk.begin(self.job.order)

    def halt(self) -> None:
        """Cancels the walks and tasks of a job that no longer runs."""
        self._desk.end(self.job.record.job)
        for task in self._tasks:
            task.cancel()
        self._handed()

    async def close(self) -> None:
        """Ends the job's work in this run of the master and records its progress."""
        tasks = [*self._tasks, *([self._saves] if self._saves is not None else [])]
        for task in tasks:  # a save may be in its pause after a failure
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.job.hurry()
        with contextlib.suppress(CacheFSError):
            await self.save()

    def settle(self, pack: TaskBatch, told: TaskResult, worker: str) -> None:
        """Processes a worker's result of a task."""
        if told.room is not None:
            self._check_room()  # "the whole job does not fit" is the better message
        self._do(self.job.settle(pack, told, self._clocks.now(), worker))

    def unowned(self, parts: Iterable[Part]) -> None:
        self.job.unowned(parts)
        self._do(Effects())

    def _moved(self) -> None:
        """Processes the progress of a walk."""
        self._check_room()
        self._do(Effects())

    def _check_room(self) -> None:
        capacity_bytes = self._room()
        if capacity_bytes is not None and self.job.runs:
            self.job.has_room(capacity_bytes, self._owners())
        if self.job.runs:
            quotas = self._ground.policies.effective(self.job.record.base).quotas
            self.job.keeps_to(quotas, self._owners())

    def tick(self) -> None:
        """Runs periodic checks. The service calls it about once a second."""
        self._check_room()
        in_flight_bytes = self._desk.in_flight_bytes(self.job.record.job)
        self._do(Effects(parts=self.job.tick(self._clocks.now(), in_flight_bytes)))

    def _do(self, effects: Effects) -> None:
        if not self.job.runs:
            self.halt()
        else:
            self._hand(effects.parts)
            for slot in effects.look:
                self._spawn(self._look(slot))
        self._save_soon()
        self.stir()

    def _hand(self, parts: list[Part]) -> None:
        if not parts or not self.job.runs:
            return
        unowned = self._desk.add(self.job.record.job, parts)
        if unowned:
            self.job.unowned(unowned)
        self._handed()

    async def _look(self, slot: Slot) -> None:
        """Stats a file again whose content at the origin differed from the stored metadata."""
        origin: Origin | None = None
        failure: CacheFSError | None = None
        async with self._looks:
            try:
                origin = await self._fresh(slot)
            except NotFound:
                pass
            except CacheFSError as err:
                failure = err
        self._do(self.job.looked(slot, origin, failure))

    async def _fresh(self, slot: Slot) -> Origin | None:
        await self._ground.report_changed(slot.origin.content.ino)
        inode = (await self._ground.resolve(slot.path)).inode
        if inode is None or inode.kind is not Kind.FILE:
            return None
        return self._ground.locate(inode.ino)

    def stir(self) -> None:
        """Wakes the walks, which check the job again."""
        stirred, self._stirred = self._stirred, asyncio.Event()
        stirred.set()

    async def wait(self) -> None:
        await self._stirred.wait()

    def _save_soon(self) -> None:
        if self._saves is None or self._saves.done():
            self._saves = asyncio.ensure_future(self._save_now())

    async def _save_now(self) -> None:
        try:
            await self.save()
        except CacheFSError as err:
            log.warning("job %d cannot be recorded: %s", self.job.record.job, err.one_line())
            await asyncio.sleep(SAVE_AGAIN_S)

    async def save(self) -> None:
        """Writes the job's pending progress; durable on return. Raises the store's errors. After
        a cancellation the write continues."""
        write = asyncio.ensure_future(self._save_once())
        write.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(write)

    async def _save_once(self) -> None:
        async with self._saving:
            write = self.job.take(self._clocks.now(), self._clocks.wall())
            if write is None:
                return
            try:
                await asyncio.wrap_future(
                    self._ground.store.write(
                        lambda writer: table.put(writer, write.record, write.failures)
                    )
                )
            except CacheFSError:
                self.job.not_written(write)
                raise
            if self.job.wrote(write):
                _log_end(write.record.job, write.record.state, write.record.message)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (err := task.exception()) is not None:
            self._broken(err)

    def _broken(self, err: BaseException) -> None:
        """Stops the job after an unexpected error of a walk, with the error as its message."""
        log.error("job %d broke", self.job.record.job, exc_info=err)
        why = err.one_line() if isinstance(err, CacheFSError) else type(err).__name__
        self.job.broke(f"stopped: {why}")
        self._do(Effects())


def _log_end(job: int, state: JobState, message: str) -> None:
    log.info("job %d %s%s", job, state.value, f": {message}" if message else "")
