"""Bytes that go from a file to a descriptor through a pipe: all of a reply, or nothing."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator

import pytest

from cachefs.fuse.kernel import splice as module
from cachefs.fuse.kernel.splice import MAX_BYTES, MIN_BYTES, Splicer
from tests.unit.fuse.fake_node import descriptors

DATA = random.Random(3).randbytes(MAX_BYTES + 5000)


@pytest.fixture
def source() -> Iterator[int]:
    fd = os.memfd_create("cache file")
    os.write(fd, DATA)
    yield fd
    os.close(fd)


@pytest.fixture
def device() -> Iterator[int]:
    """Stands for /dev/fuse: keeps what was written."""
    fd = os.memfd_create("device")
    yield fd
    os.close(fd)


@pytest.mark.parametrize("size", [MIN_BYTES, MIN_BYTES + 1, 100_000, MAX_BYTES])
@pytest.mark.parametrize("position", [0, 1, 4095])
def test_a_reply_is_a_header_and_its_bytes(
    source: int, device: int, size: int, position: int
) -> None:
    before, splicer, written = descriptors(), Splicer(device), b""
    for number in range(3):
        header = b"header number %02d" % number
        assert splicer.send(header, source, position, size)
        written += header + DATA[position : position + size]
    assert os.pread(device, 4 * MAX_BYTES, 0) == written
    splicer.close()
    splicer.close()
    assert descriptors() == before


@pytest.mark.parametrize("size", [0, MIN_BYTES - 1, MAX_BYTES + 1])
def test_sizes_that_are_not_spliced(source: int, device: int, size: int) -> None:
    splicer = Splicer(device)
    assert not splicer.send(b"header", source, 0, size)
    assert os.fstat(device).st_size == 0


def test_a_file_that_ends_early_leaves_nothing_in_the_pipe(source: int, device: int) -> None:
    splicer = Splicer(device)
    assert not splicer.send(b"header", source, len(DATA) - 10, MIN_BYTES)
    assert splicer.send(b"HEADER", source, 0, MIN_BYTES)
    assert os.pread(device, 2 * MAX_BYTES, 0) == b"HEADER" + DATA[:MIN_BYTES]
    splicer.close()


def test_a_reply_that_nobody_wants_counts_as_sent(
    source: int, device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.splice
    failures = [errno.ENOENT]

    def splice(src: int, dst: int, count: int, offset_src: int | None = None) -> int:
        if dst == device and failures:
            raise OSError(failures.pop(), "from the device")
        return real(src, dst, count, offset_src)

    monkeypatch.setattr(module.os, "splice", splice)
    splicer = Splicer(device)
    assert splicer.send(b"unwanted", source, 0, MIN_BYTES)
    assert splicer.send(b"wanted", source, 5, MIN_BYTES)
    assert os.pread(device, 2 * MAX_BYTES, 0) == b"wanted" + DATA[5 : MIN_BYTES + 5]
    failures.append(errno.EINVAL)
    with pytest.raises(OSError, match="from the device"):
        splicer.send(b"bad", source, 0, MIN_BYTES)
    assert splicer.send(b"+", source, 0, MIN_BYTES), "another pipe, without what was left"
    splicer.close()
