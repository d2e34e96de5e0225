"""A part of a page that another tier has comes from there, and what is missing from the next
source."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash

from cachefs.core.model import PAGE_BYTES, ContentId, NamespaceId, Origin
from worker.cache import tier_source as source_module
from worker.fill.source import Purpose
from worker.fill.transfer import Transfer
from worker.store.cached_file import Run
from worker.tier.guarded_reads import DiskReader

SIZE = 4 * PAGE_BYTES + 777
HERE = 2  # pages that the other tier has


class Then:
    """The next source. `asked`: (offset, size)."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def read(self, origin: Origin, offset: int, size: int, purpose: Purpose) -> Any:
        self.asked.append((offset, size))
        return Body(self.data[offset : offset + size])


class Body:
    from_peer = False
    checksum = None

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[memoryview]:
        for at in range(0, len(self._data), 100_000):
            yield memoryview(self._data)[at : at + 100_000]

    def close(self) -> None:
        pass


@pytest.fixture
def data() -> bytes:
    return random.Random(1).randbytes(SIZE)


@pytest.fixture
def tier_file(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The file of the other tier, which has the first pages."""
    fd = os.memfd_create("tier")
    os.write(fd, data[: HERE * PAGE_BYTES])
    sums = [
        xxhash.xxh3_64_intdigest(data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
        for page in range(HERE)
    ]

    def look(tier: object, key: bytes, size: int, first: int, end: int) -> Any:
        found = sums[first:end]
        return Run(os.dup(fd), size, found) if found else None

    monkeypatch.setattr(source_module, "_look", look)
    yield fd
    os.close(fd)


@pytest.mark.usefixtures("tier_file")
@pytest.mark.parametrize(
    ("start", "stop", "asked"),
    [
        (0, PAGE_BYTES, []),
        (100, 5000, []),
        (PAGE_BYTES - 9, PAGE_BYTES + 9, []),
        (2 * PAGE_BYTES - 9, 2 * PAGE_BYTES + 9, [(2 * PAGE_BYTES, PAGE_BYTES)]),
        (3 * PAGE_BYTES + 5, 3 * PAGE_BYTES + 500_005, [(3 * PAGE_BYTES + 5, 500_000)]),
        (4 * PAGE_BYTES + 5, SIZE, [(4 * PAGE_BYTES + 5, 772)]),
    ],
)
def test_a_transfer_brings_the_bytes_of_its_span(
    data: bytes, start: int, stop: int, asked: list[tuple[int, int]]
) -> None:
    disk: Any = SimpleNamespace(
        directory=SimpleNamespace(in_memory=True, path="/other"),
        outside=set(),
        health=SimpleNamespace(in_service=True),
    )
    contents: Any = SimpleNamespace(order_known=False)
    other = source_module.OtherTier(disk, contents)
    then: Any = Then(data)
    reader = DiskReader()
    source = source_module.TierSource(then, lambda: [other], reader, lambda *_: None)
    content = ContentId(NamespaceId(b"n" * 16), 7, 0, 9)
    origin = Origin(content, "u", b"file", "etag", SIZE, 0)
    pages: list[int] = []
    first, end = start // PAGE_BYTES, -(-stop // PAGE_BYTES)
    made = os.memfd_create("part")
    try:
        transfer = Transfer(
            origin, first, end, start,
            lambda call, page, _: call(pages.append, page),
            lambda function, *args: function(*args),
            (start, stop),
        )  # fmt: skip
        transfer.run(source, made, Purpose.SERVE)
        assert os.pread(made, SIZE, 0) == data[start:stop]
        assert pages == [*range(first, end)]
        assert transfer.next_page == end
        assert then.asked == asked
        assert transfer.tier_bytes + transfer.origin_bytes == stop - start
        assert (transfer.tier_bytes > 0) == (first < HERE)
    finally:
        os.close(made)
        reader.close()
