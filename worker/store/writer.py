"""The writer thread of the index: queued changes, many in one transaction, one commit.

A job waits up to `GATHER_S` for others to share its commit, unless somebody waits for it (`write`).
Jobs are applied in the order of submission. After the commit that holds a job its `after` runs in
the writer thread (publishing), then `done` is called there with None; with the error when the
commit failed, and `after` did not run. Callers bound what they submit: files in flight, batches of
evictions. What comes after `close` is refused.

An error that nobody expected ends the thread: the index may be other than it seems. Everything that
waits, and all that comes, gets `IndexBroken` then, until the tier is taken again.
"""

from __future__ import annotations

import collections
import errno
import logging
import math
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import lmdb

from worker.store.index import Change, Index

log = logging.getLogger(__name__)

MOST_JOBS: Final = 1024  # of one commit
GATHER_S: Final = 0.004

Done = Callable[[OSError | None], None]


class IndexBroken(OSError):
    """The writer has ended by an error of its own; `__cause__` is that."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the writer of the index has failed")


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Job:
    changes: Sequence[Change]
    after: Callable[[], None]
    done: Done


class Writer:
    """One thread over one index. `close` commits what is queued. `broken`: it writes no more."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.commits = 0
        self.failed_commits = 0
        self.at_disk = 0  # odd while a commit is under way, another number each time
        self._submitted = self._finished = 0
        self._urgent = threading.Event()
        self._batch: collections.deque[Job] = collections.deque()  # whose ends are not told yet
        self.broken: IndexBroken | None = None
        self._lock = threading.Lock()  # nothing is queued behind the end
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="index-writer", daemon=True)
        self._thread.start()

    def submit(
        self, changes: Sequence[Change], done: Done, after: Callable[[], None] = _nothing
    ) -> bool:
        """Never blocks. False, and nobody hears of it, when the writer was closed before; `done`
        is called here when it is broken."""
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
        """Jobs whose commit has not ended: what a SIGKILL now may cost."""
        return self._submitted - self._finished

    def write(self, changes: Sequence[Change]) -> None:
        """Submits and waits for the commit; not for the event loop. Raises OSError: the commit's,
        IndexBroken, or ESHUTDOWN after `close`."""
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
        """Commits what is queued and ends the thread; False when it is still at it after
        `wait_s`."""
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
        except BaseException as err:  # noqa: BLE001 -- told to all who wait, and to the tier's watch
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
        """Queued jobs join the batch; True: the last ones have."""
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
        except (lmdb.Error, OSError) as err:
            error = err if isinstance(err, OSError) else OSError(5, f"index: {err}")
            error.__cause__ = err if error is not err else None
            self.failed_commits += 1
        while self._batch:
            if error is None:
                self._publish(self._batch[0])
            self._tell(error)
        self.at_disk += 1

    def _publish(self, job: Job) -> None:
        try:
            job.after()
        except OSError as err:  # the file is recorded: its next open publishes it
            log.warning("a file could not be published: %s", err.strerror)

    def _tell(self, error: OSError | None) -> None:
        """The end of the first job of the batch."""
        job = self._batch.popleft()
        self._finished += 1
        job.done(error)

    def _break(self, cause: BaseException) -> None:
        broken = IndexBroken()
        broken.__cause__ = cause
        log.error(
            "the writer of the index has failed, it writes no more: %r", cause, exc_info=cause
        )
        with self._lock:
            self.broken = broken
            self._gather(math.inf)
        while self._batch:
            try:
                self._tell(broken)
            except BaseException:  # the others must hear of it too
                log.exception("who waited for a commit cannot be told")
        self.at_disk += self.at_disk & 1
