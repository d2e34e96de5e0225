"""Reads of one tier for another: in time or not at all, and no descriptor is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.worker.rig import descriptors
from worker.tiers import reading
from worker.tiers.reading import MOST_THREADS, DiskReader, GivenUp

LIMIT_S = 20.0


def tier(*, in_memory: bool = False) -> Any:
    return SimpleNamespace(tier=SimpleNamespace(in_memory=in_memory), outside=set())


@pytest.fixture
def file(tmp_path: Path) -> int:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 100)
    return os.open(tmp_path / "file", os.O_RDONLY)


@pytest.mark.parametrize("in_memory", [True, False])
def test_reads_are_whole(file: int, in_memory: bool) -> None:
    reader, parts = DiskReader(), tier(in_memory=in_memory)
    buffer = memoryview(bytearray(1000))
    for offset in (0, 256, 1024):
        reader.read(parts, file, buffer, offset)
        assert bytes(buffer) == (bytes(range(256)) * 5)[:1000]
    with pytest.raises(OSError, match="shorter"):
        reader.read(parts, file, buffer, 25_000)
    assert parts.outside == set()
    reader.close()
    os.close(file)


def hang(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The disk answers when the returned function is called."""
    gate = threading.Event()
    real = reading._fill

    def fill(fd: int, buffer: memoryview, offset: int) -> None:
        assert gate.wait(LIMIT_S)
        real(fd, buffer, offset)

    monkeypatch.setattr(reading, "_fill", fill)
    monkeypatch.setattr(reading, "READ_S", 0.05)
    return gate.set


def test_a_disk_that_hangs_is_given_up_and_keeps_its_descriptor(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = hang(monkeypatch)
    reader, parts = DiskReader(), tier()
    stuck = [os.dup(file) for _ in range(MOST_THREADS + 2)]
    for fd in stuck:
        with pytest.raises(GivenUp):
            reader.read(parts, fd, memoryview(bytearray(10)), 0)
        os.fstat(fd)  # still the read's
    assert parts.outside == set()
    assert len(reader._threads) <= MOST_THREADS
    answers()
    reader.close()
    for thread in reader._threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    os.close(file)
    left = {name.split()[0] for name in descriptors()}
    assert not left & {str(fd) for fd in stuck}, "closed by the reads that came too late"


def test_what_is_under_way_can_be_seen(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever watches that disk."""
    answers = hang(monkeypatch)
    monkeypatch.setattr(reading, "READ_S", LIMIT_S)
    reader, parts = DiskReader(), tier()
    buffer = memoryview(bytearray(10))
    thread = threading.Thread(target=reader.read, args=(parts, file, buffer, 0))
    thread.start()
    pause = threading.Event()
    for _ in range(1000):
        if parts.outside:
            break
        pause.wait(0.01)
    assert len(parts.outside) == 1
    answers()
    thread.join(LIMIT_S)
    assert parts.outside == set()
    assert bytes(buffer) == bytes(range(10))
    reader.close()
    os.close(file)
