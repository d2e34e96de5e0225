"""The lock of a mount's reader: one at a time, free when its thread ends, by whatever way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from cachefs.fuse.kernel.reader_lock import ReaderLock
from cachefs.fuse.kernel.table import TakeoverTable
from tests.services.processes import wait_until


@pytest.fixture
def table() -> Iterator[int]:
    fd = TakeoverTable.make()
    yield fd
    os.close(fd)


def test_one_takes_it_at_a_time(table: int) -> None:
    first, second = ReaderLock(table), ReaderLock(table)
    assert first.try_take()
    assert first.try_take(), "it has it"
    assert not second.try_take()
    second.release()
    assert not second.try_take(), "a release of what is another one's does nothing"
    first.release()
    assert second.try_take()
    second.release()


def _child_takes(table: int) -> int:
    """Returns the pid of a process that has the lock, and waits for its end."""
    ready, taken = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(taken, b"y" if ReaderLock(table).try_take() else b"n")
            signal.pause()
        finally:
            os._exit(1)
    os.close(taken)
    assert os.read(ready, 1) == b"y"
    os.close(ready)
    return pid


def test_a_killed_process_leaves_it(table: int) -> None:
    lock = ReaderLock(table)
    for _ in range(3):
        pid = _child_takes(table)
        assert not lock.try_take()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert lock.try_take()
        lock.release()


def test_the_end_of_the_thread_that_took_it_is_enough(table: int) -> None:
    """The kernel may keep another thread of a killed client, and with it its descriptors."""
    lock = ReaderLock(table)
    ready, taken = os.pipe()
    pid = os.fork()
    if not pid:
        thread = threading.Thread(target=ReaderLock(table).try_take)
        thread.start()
        thread.join()
        os.write(taken, b"y")
        signal.pause()
        os._exit(1)
    try:
        os.read(ready, 1)
        wait_until(lock.try_take, "the lock of a thread that ended is free", 10)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "its process lives"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(taken)
        lock.release()


def test_a_table_of_a_version_without_it_is_free_for_all(table: int) -> None:
    os.pwrite(table, bytes(100), 28)
    assert ReaderLock(table).try_take()
    assert ReaderLock(table).try_take()
