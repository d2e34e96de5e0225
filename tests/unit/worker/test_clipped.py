"""The part of a body of whole pages that a reader asked for."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.model import PAGE_BYTES
from worker.fill.clipped import Clipped, clipped
from worker.fill.tier_body import TierBody


class Chunks(TierBody):
    """A body of these bytes, in chunks of `step`; its checksums are of whole pages."""

    checksum = 7

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__()
        self._data = data
        self._step = step
        self.closed = 0

    def __iter__(self) -> Iterator[memoryview]:
        self.from_tier = True
        for at in range(0, len(self._data), self._step):
            yield memoryview(self._data)[at : at + self._step]

    def close(self) -> None:
        self.closed += 1


@given(st.binary(max_size=60), st.integers(1, 70), st.integers(0, 60), st.integers(0, 60))
def test_the_bytes_asked_for_come_however_they_are_cut(
    data: bytes, step: int, one: int, other: int
) -> None:
    start, stop = sorted((one, other))
    body = Chunks(data, step)
    got = Clipped(body, 1000, 1000 + start, 1000 + stop)
    chunks = [bytes(chunk) for chunk in got]
    assert b"".join(chunks) == data[start:stop]
    assert all(chunks), "no chunk is empty"
    assert got.checksum is None, "a part of a page has not the checksum of the page"
    assert got.from_tier == (data != b"")
    got.close()
    assert body.closed == 1


def test_whole_pages_are_not_clipped() -> None:
    body, size = Chunks(b"", 1), 5 * PAGE_BYTES + 9
    assert clipped(body, size, (1, 3), (PAGE_BYTES, 3 * PAGE_BYTES)) is body
    assert clipped(body, size, (5, 6), (5 * PAGE_BYTES, size)) is body
    assert clipped(body, size, (5, 6), (5 * PAGE_BYTES + 1, size)) is not body
    assert clipped(body, size, (1, 3), (PAGE_BYTES, 3 * PAGE_BYTES - 1)) is not body
