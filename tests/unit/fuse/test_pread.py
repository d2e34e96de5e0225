"""Reads that would wait are made in threads and end: a disk that hangs holds up nobody else."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from cachefs.client.call_waits import Waits
from cachefs.core.errors import DeadlineExceeded
from cachefs.fuse import pread
from cachefs.fuse.pread import IN_THREAD, INLINE, FileReader

LIMIT_S = 20.0


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Reads at offset 0 wait for the event."""
    go_on = threading.Event()
    read_all = pread._read_all

    def wait(fd: int, offset: int, size: int) -> bytes:
        if offset == 0:
            go_on.wait(LIMIT_S)
        return read_all(fd, offset, size)

    monkeypatch.setattr(pread, "_read_all", wait)
    yield go_on
    go_on.set()


def test_a_read_that_hangs_ends_and_others_go_on(stuck: threading.Event, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")

    async def main() -> None:
        reader = FileReader(Waits())
        reader.limit_s = 0.05
        with open(tmp_path / "file", "rb") as file:
            fd = file.fileno()
            for _ in range(pread._THREADS + 4):  # more than there are threads
                with pytest.raises(DeadlineExceeded):
                    await reader.read(fd, 0, 4)
            reader.limit_s = LIMIT_S
            assert await reader.read(fd, 4, 4) == b"4567", "stuck threads do not count"
            stuck.set()
            assert await reader.read(fd, 0, 4) == b"0123"
            with trio.fail_after(LIMIT_S):
                while any(not one.ended for one in reader._stuck):
                    await trio.sleep(0.001)
            await reader.read(fd, 4, 4)
            assert reader._limiter.total_tokens == pread._THREADS

    trio.run(main)


def test_memory_is_read_inline(tmp_path: Path) -> None:
    reader = FileReader(Waits())
    memfd = os.memfd_create("segment")
    os.write(memfd, b"segment")
    assert reader.flags_of(os.fstat(memfd).st_dev, memfd) == INLINE
    assert reader.flags_without_fstat(memfd) == INLINE
    assert bytes(reader.read_now(memfd, INLINE, 0, 7) or b"") == b"segment"
    os.close(memfd)
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        assert reader.flags_of(os.fstat(file.fileno()).st_dev, file.fileno()) == INLINE
    with open(tmp_path / "x", "wb") as file:
        assert reader.flags_without_fstat(file.fileno()) == IN_THREAD
        assert reader.read_now(file.fileno(), IN_THREAD, 0, 1) is None
