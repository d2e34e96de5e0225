"""A body that goes into a file, piece by piece: the bytes and the checksums are right whatever the
pieces, and however little the kernel writes at once."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import xxhash

from cachefs.core.model import PAGE_BYTES
from connectors.download import file_exchange
from connectors.download.file_exchange import WRITE_BYTES, WRITE_PIECES, FileExchange
from connectors.fetch.exchange import PIECE_BYTES
from tests.unit.connectors import downloads
from tests.unit.connectors.downloads import Into
from tests.unit.connectors.raw_http import RawServer

STOP = 0  # libcurl's sign to end the request
PLACE = 4321


class Writes:
    """In place of `os`: counts the calls that write, and may write less than it is given."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: bytes of one call."""
        self._most = most
        self.pieces: list[int] = []  # of each call
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwritev(self, fd: int, pieces: list[bytes], place: int) -> int:
        self.pieces.append(len(pieces))
        return self.pwrite(fd, b"".join(pieces), place)

    def pwrite(self, fd: int, data: bytes, place: int) -> int:
        self.sizes.append(len(data))
        return os.pwrite(fd, data[: self._most], place)


@pytest.fixture
def at_disk() -> memoryview:
    return memoryview(bytearray(8)).cast("Q")


@pytest.fixture
def exchange(at_disk: memoryview) -> Iterator[FileExchange]:
    made = FileExchange(at_disk)
    yield made
    made.close()


def begin(exchange: FileExchange, into: Into, head: bytes | None = None) -> None:
    raw = RawServer()
    get = downloads.request(raw, into.offset, into.size)
    raw.close()
    exchange.begin_file(get, os.dup(into.fd), into.offset, into.place)
    head = downloads.head(into.offset, into.size) if head is None else head
    exchange._lines += head.splitlines(keepends=True)


def cut(rng: random.Random, size: int) -> Iterator[tuple[int, int]]:
    """Yields pieces of any size, down to 1 byte."""
    at = 0
    while at < size:
        end = min(size, at + 1 + int(PIECE_BYTES ** rng.uniform(rng.random(), 1)))
        yield at, end
        at = end


def take(exchange: FileExchange, into: Into, pieces: Iterable[tuple[int, int]]) -> None:
    """Hands the body over in pieces."""
    data = downloads.part(into.offset, into.size)
    for start, end in pieces:
        assert exchange._on_body(data[start:end]) is None


def checksums(into: Into) -> list[int]:
    data = downloads.part(into.offset, into.size)
    return [xxhash.xxh3_64_intdigest(data[start:end]) for start, end in into.pages]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("most", [None, 5000])
def test_any_pieces(
    exchange: FileExchange, monkeypatch: pytest.MonkeyPatch, seed: int, most: int | None
) -> None:
    """One handle takes one body after the other."""
    rng, writes = random.Random(seed), Writes(most)
    monkeypatch.setattr(file_exchange, "os", writes)
    for _ in range(3):
        size = rng.choice([1, PAGE_BYTES, rng.randrange(1, 3 * PAGE_BYTES)])
        into = Into(rng.choice([0, rng.randrange(PAGE_BYTES)]), size, rng.randrange(PLACE))
        begin(exchange, into)
        assert exchange.is_large == (len(into.pages) > 1)
        take(exchange, into, cut(rng, size))
        assert into.content == into.written
        assert exchange.take_checksums() == checksums(into)
        assert exchange.take_checksums() == []
        assert (exchange.left, exchange.received_bytes, exchange.errno) == (0, size, 0)
        assert exchange.end() == os.fstat(into.fd).st_blocks * 512
    assert max(writes.sizes) < WRITE_BYTES + 2 * PIECE_BYTES
    assert max(writes.pieces) <= WRITE_PIECES


@pytest.mark.parametrize("size", [1, PIECE_BYTES - 1, PIECE_BYTES])
def test_pieces_are_gathered(
    exchange: FileExchange, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Up to a number of bytes, or of pieces."""
    writes, into = Writes(), Into(0, PAGE_BYTES // 2)
    monkeypatch.setattr(file_exchange, "os", writes)
    begin(exchange, into)
    pieces = [(at, at + size) for at in range(0, into.size - size, size)]
    take(exchange, into, pieces)
    assert set(writes.pieces) == {min(WRITE_PIECES, -(-WRITE_BYTES // size))}
    assert len(pieces) - sum(writes.pieces) < writes.pieces[0]
    assert exchange.take_checksums() == []
    exchange.end()


def test_a_piece_may_have_several_pages(exchange: FileExchange) -> None:
    into = Into(PAGE_BYTES - 10, 3 * PAGE_BYTES, PLACE)
    begin(exchange, into)
    take(exchange, into, [(0, into.size)])
    assert len(into.pages) == 4
    assert exchange.take_checksums() == checksums(into)
    assert into.content == into.written
    exchange.end()


def test_a_page_has_a_checksum_once_it_is_written(
    exchange: FileExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not if that fails."""
    into = Into(0, 2 * PAGE_BYTES)
    begin(exchange, into)
    take(exchange, into, [(0, PAGE_BYTES - 1)])
    assert exchange.checksums == []
    take(exchange, into, [(PAGE_BYTES - 1, PAGE_BYTES)])
    assert exchange.checksums == checksums(into)[:1]
    assert into.content[:PAGE_BYTES] == downloads.part(0, PAGE_BYTES)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "no disk")

    monkeypatch.setattr(os, "pwritev", fail)
    assert exchange._on_body(downloads.part(PAGE_BYTES, PAGE_BYTES)) == STOP
    assert exchange.errno == errno.EIO
    assert exchange.checksums == checksums(into)[:1]
    exchange.end()
    begin(exchange, into)
    assert exchange.errno == 0
    assert exchange.checksums == []
    exchange.end()


def test_a_short_write_that_cannot_be_continued(
    exchange: FileExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Writes(most=100)
    into = Into(0, 2000)
    begin(exchange, into)

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(writes, "pwrite", fail, raising=False)
    monkeypatch.setattr(writes, "pwritev", lambda *_: 100, raising=False)
    monkeypatch.setattr(file_exchange, "os", writes)
    assert exchange._on_body(downloads.part(0, 2000)) == STOP
    assert exchange.errno == errno.ENOSPC
    assert exchange.checksums == []
    exchange.end()


HEADS = {
    "none": b"",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "403": b"HTTP/1.1 403 Forbidden\r\n\r\n",
    "another": downloads.head(1, 2000),
    "without-end": downloads.head(0, 2000)[:-2],
}


@pytest.mark.parametrize("name", HEADS)
def test_nothing_is_written_after_another_head(exchange: FileExchange, name: str) -> None:
    into = Into(0, 2000)
    begin(exchange, into, HEADS[name])
    assert exchange._on_body(downloads.part(0, 2000)) == STOP
    assert into.content == into.filled
    assert (exchange.checksums, exchange.received_bytes, exchange.errno) == ([], 0, 0)
    exchange.end()


def test_more_than_was_asked_for_ends_it(exchange: FileExchange) -> None:
    into = Into(0, 2000)
    begin(exchange, into)
    take(exchange, into, [(0, 1999)])
    assert exchange._on_body(b"xx") == STOP
    assert exchange.is_over
    assert into.content == into.filled
    assert exchange.checksums == []
    exchange.end()


def test_the_number_is_odd_at_the_disk(
    exchange: FileExchange, at_disk: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And even again after it, also where that fails."""
    seen: list[int] = []

    def look(name: str) -> Any:
        call = getattr(os, name)

        def looked(*arguments: Any) -> Any:
            seen.append(at_disk[0])
            return call(*arguments)

        return looked

    into = Into(0, 2 * WRITE_BYTES)
    begin(exchange, into)
    for name in ("pwritev", "fstat", "close"):
        monkeypatch.setattr(os, name, look(name))
    take(exchange, into, [(0, WRITE_BYTES), (WRITE_BYTES, 2 * WRITE_BYTES)])
    assert exchange.end() >= 2 * WRITE_BYTES
    assert seen == [1, 3, 5, 5]
    assert at_disk[0] == 6
    begin(exchange, into)
    os.close(exchange._fd)
    assert exchange._on_body(downloads.part(0, into.size)) == STOP
    assert exchange.errno == errno.EBADF
    assert at_disk[0] == 8
    assert exchange.end() == -1
    assert at_disk[0] == 10


def test_a_disk_that_fails_has_no_size(
    exchange: FileExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is closed all the same."""
    into = Into(0, 100)
    begin(exchange, into)
    fd = exchange._fd

    def fail(_: int) -> os.stat_result:
        raise OSError(errno.EIO, "no disk")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", fail)
        assert exchange.end() == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_close_that_fails_is_a_failed_write(
    exchange: FileExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network's disk, which may have kept the bytes until then."""
    into, close = Into(0, 100), os.close
    begin(exchange, into)
    take(exchange, into, [(0, 100)])

    def fail(fd: int) -> None:
        close(fd)
        raise OSError(errno.EDQUOT, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", fail)
        assert exchange.end() >= 100
    assert exchange.errno == errno.EDQUOT
