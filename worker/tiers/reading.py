"""Reads of a tier's files for another tier: by threads of their own, with a limit, so that a disk
that hangs keeps nobody but them.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
from typing import Final

from worker.parts import Parts, no_answer

MOST_THREADS: Final = 4
READ_S: Final = 5.0


class _Job:
    """One read. Whoever comes second of its end and its giving up closes the descriptor."""

    __slots__ = ("buffer", "done", "error", "fd", "given_up", "offset", "read_bytes", "second")

    def __init__(self, fd: int, buffer: memoryview, offset: int) -> None:
        self.fd = fd
        self.buffer = buffer
        self.offset = offset
        self.done = threading.Event()
        self.error: OSError | None = None
        self.read_bytes = 0
        self.given_up = False
        self.second = threading.Lock()


class DiskReader:
    """Threads that are started when they are needed and end with the process, at the latest."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()

    def read(self, parts: Parts, fd: int, buffer: memoryview, offset: int) -> None:
        """Fills the buffer from a file of that tier. From any thread. Raises OSError, `no_answer`
        after `READ_S`; the buffer, and `fd`, are no longer the caller's then."""
        if parts.tier.in_memory:
            return _fill(fd, buffer, offset)
        job = _Job(fd, buffer, offset)
        parts.outside.add(job)
        try:
            self._start()
            self._jobs.put(job)
            if not job.done.wait(READ_S) and not self._ended(job):
                raise GivenUp(*no_answer().args)
        finally:
            parts.outside.discard(job)
        if job.error is not None:
            raise job.error

    def _ended(self, job: _Job) -> bool:
        """In the last moment, after all?"""
        with job.second:
            job.given_up = not job.done.is_set()
        return not job.given_up

    def _start(self) -> None:
        with self._lock:
            if len(self._threads) < MOST_THREADS and not self._idle.acquire(blocking=False):
                name = f"tier-read-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                _fill(job.fd, job.buffer, job.offset)
            except OSError as err:
                job.error = err
            with job.second:
                job.done.set()
                if job.given_up:
                    os.close(job.fd)
            del job
            self._idle.release()

    def close(self) -> None:
        """Ends the threads, those that are stuck when the disk lets them."""
        for _ in self._threads:
            self._jobs.put(None)


class GivenUp(OSError):
    """The disk does not answer; the descriptor belongs to the read that is still under way."""


def _fill(fd: int, buffer: memoryview, offset: int) -> None:
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if not count:
            raise OSError(errno.EIO, "the file is shorter than its record says")
        done += count
