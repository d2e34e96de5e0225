"""The writer thread of the index: queued changes, many in one transaction, one commit.

A job waits up to `GATHER_S` for others to share its commit, unless a thread waits for it (`write`).
Jobs are applied in the order of submission. After its commit the writer thread calls the job's
`after` (publishing), then `done` with None. If the commit failed, it calls only `done`, with the
error. Callers bound the queue: files in flight, batches of evictions. After `close`, jobs are
refused.

An unexpected error ends the thread, since the index may be inconsistent, and so does a write of
LMDB's meta page that fails. All waiting and later jobs then fail with `IndexBroken`, until the tier
is opened again.
"""

from __future__ import annotations

import collections
import errno
import logging
import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final

import lmdb
import msgspec

from worker.store.index import Change, Index

log = logging.getLogger(__name__)

MOST_JOBS: Final = 1024  # of one commit
GATHER_S: Final = 0.004

Done = Callable[[OSError | None], None]


class IndexBroken(OSError):
    """The writer thread has ended by an unexpected error, its `__cause__`."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the index writer has failed")


def _nothing() -> None:
    pass


class Job(msgspec.Struct):
    changes: Sequence[Change]
    after: Callable[[], None]
    done: Done


class Writer:
    """The writer thread of one index. `close` commits the queue. `broken`: why it has ended."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.commits = 0
        self.failed_commits = 0
        self.at_disk = 0  # odd during a commit; changes with each commit
        self._submitted = self._finished = 0
        self._urgent = threading.Event()
        self._batch: collections.deque[Job] = collections.deque()  # whose `done` is still due
        self.broken: IndexBroken | None = None
        self._lock = threading.Lock()  # no job is queued after the end marker
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="index-writer", daemon=True)
        self._thread.start()

    def submit(
        self, changes: Sequence[Change], done: Done, after: Callable[[], None] = _nothing
    ) -> bool:
        """Queues a job; never blocks. Returns False, without calling `done`, after `close`. If the
        writer is broken, calls `done` in the caller's thread."""
        with self._lock:
            if self._closed:
                return False
            broken = self.broken
            if broken is None:
                self._submitted += 1
                self._jobs.put(Job(changes, after, done))
        if broken is not None:
            done(broken)
        return True

    @property
    def waiting(self) -> int:
        """The number of jobs whose commit has not ended; a SIGKILL may lose them."""
        return self._submitted - self._finished

    def write(self, changes: Sequence[Change]) -> None:
        """Submits a job and waits for its commit; not for the event loop. Raises OSError: the
        commit's, IndexBroken, or ESHUTDOWN after `close`."""
        committed = threading.Event()
        failed: list[OSError] = []

        def done(error: OSError | None) -> None:
            if error is not None:
                failed.append(error)
            committed.set()

        if not self.submit(changes, done):
            raise OSError(errno.ESHUTDOWN, "the index is closed")
        self._urgent.set()
        committed.wait()
        if failed:
            raise failed[0]

    def close(self, wait_s: float | None = None) -> bool:
        """Commits the queue and ends the thread. Returns False if that takes more than `wait_s`."""
        with self._lock:
            if not self._closed:
                self._jobs.put(None)
            self._closed = True
        self._urgent.set()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as err:  # noqa: BLE001 -- passed to all jobs and to the tier's watch
            self._break(err)

    def _work(self) -> None:
        while (first := self._jobs.get()) is not None:
            self._urgent.wait(GATHER_S)
            self._urgent.clear()
            self._batch.append(first)
            ended = self._gather(MOST_JOBS)
            self._commit()
            if ended:
                return

    def _gather(self, most: float) -> bool:
        """Moves queued jobs to the batch. Returns True after the last one (`close`)."""
        while len(self._batch) < most:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return True
            self._batch.append(job)
        return False

    def _commit(self) -> None:
        error = None
        self.at_disk += 1
        try:
            changes = [change for job in self._batch for change in job.changes]
            if changes:
                self._index.write(changes)
                self.commits += 1
        except lmdb.PanicError:
            raise  # no later commit or read can succeed
        except (lmdb.Error, OSError) as err:
            error = err if isinstance(err, OSError) else OSError(5, f"index: {err}")
            error.__cause__ = err if error is not err else None
            self.failed_commits += 1
        while self._batch:
            if error is None:
                self._publish(self._batch[0])
            self._end_first(error)
        self.at_disk += 1

    def _publish(self, job: Job) -> None:
        try:
            job.after()
        except OSError as err:  # the file is recorded, so its next open publishes it
            log.warning("a file could not be published: %s", err.strerror)

    def _end_first(self, error: OSError | None) -> None:
        """Ends the first job of the batch."""
        job = self._batch.popleft()
        self._finished += 1
        job.done(error)

    def _break(self, cause: BaseException) -> None:
        broken = IndexBroken()
        broken.__cause__ = cause
        log.error("the index writer has failed and has stopped: %r", cause, exc_info=cause)
        with self._lock:
            self.broken = broken
            self._gather(math.inf)
        while self._batch:
            try:
                self._end_first(broken)
            except BaseException:  # call the others too
                log.exception("the call-back of a commit failed")
        self.at_disk += self.at_disk & 1
