"""The writer thread of a store: takes queued functions, runs many in one transaction, commits once.

Invariants: functions run in the order they were queued. A future is done only after the commit of
its write. A function that raises does not undo the others of its batch: the thread aborts the batch
and runs each of its functions again in a separate transaction.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from cachefs.core.errors import InUse
from master.store.base import MAX_QUEUED_WRITES, Writer

T = TypeVar("T")
MAX_BATCH: Final = 64

Begin = Callable[[], AbstractContextManager[Writer]]


class _Job:
    """A queued function, its future and, once it ran, its result."""

    __slots__ = ("function", "future", "result")

    def __init__(self, function: Callable[[Writer], Any]) -> None:
        self.function = function
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # a waiter cannot cancel the write
        self.result: Any = None


class GroupCommit:
    """The writer thread. `begin` opens a transaction that commits when its block ends and aborts
    when the block raises."""

    def __init__(self, begin: Begin, name: str) -> None:
        self._begin = begin
        self._jobs: queue.Queue[_Job | None] = queue.Queue(MAX_QUEUED_WRITES)
        self._lock = threading.Lock()  # orders submissions before the end mark
        self._closed = False
        self._began_s = 0.0  # the present batch, monotonic; 0: none
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[Writer], T]) -> Future[T]:
        """See `Store.write`."""
        job = _Job(function)
        with self._lock:
            if self._closed:
                raise InUse("the metadata store is closed")
            self._jobs.put(job)
        return job.future

    @property
    def waits_s(self) -> float:
        """See `Store`."""
        began_s = self._began_s
        return time.monotonic() - began_s if began_s else 0.0

    @property
    def waiting(self) -> int:
        """See `Store`."""
        return self._jobs.qsize()

    def close(self) -> None:
        """Runs the queued functions, then ends the thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            batch, ended = self._gather(first)
            self._began_s = time.monotonic()
            self._commit(batch)
            self._began_s = 0.0
            if ended:
                return

    def _gather(self, first: _Job) -> tuple[list[_Job], bool]:
        batch = [first]
        while len(batch) < MAX_BATCH:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return batch, True
            batch.append(job)
        return batch, False

    def _commit(self, batch: list[_Job]) -> None:
        try:
            self._transact(batch)
        except BaseException as err:  # noqa: BLE001 -- the future raises it
            if len(batch) == 1:
                batch[0].future.set_exception(err)
                return
            for job in batch:
                self._commit([job])
            return
        for job in batch:
            job.future.set_result(job.result)

    def _transact(self, batch: list[_Job]) -> None:
        with self._begin() as writer:
            for job in batch:
                job.result = job.function(writer)
