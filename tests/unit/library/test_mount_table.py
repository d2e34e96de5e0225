"""The table of mounts, read by threads at once."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

from cachefs.library import mount_table
from cachefs.library.mount_table import MountTable


def test_threads_never_see_an_empty_table() -> None:
    """The first call reads; the others wait for it."""

    def look(table: MountTable, start: threading.Barrier) -> bool:
        start.wait()
        return table.current().at("/") is not None

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(200):
            table, start = MountTable(), threading.Barrier(8)
            assert all(pool.map(look, [table] * 8, [start] * 8))
            table.close()


def test_a_reader_in_the_middle_of_the_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that looks while the first one still reads gets the whole table, too."""
    table = MountTable()
    read, reading, go_on = mount_table.read_again, threading.Event(), threading.Event()

    def slow_read(fd: int) -> bytes:
        reading.set()
        go_on.wait(10)
        return read(fd)

    monkeypatch.setattr(mount_table, "read_again", slow_read)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(table.current)
        assert reading.wait(10)
        second = pool.submit(table.current)
        go_on.set()
        assert first.result(10).at("/") is not None
        assert second.result(10).at("/") is not None
    table.close()
