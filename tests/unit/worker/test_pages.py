"""Page arithmetic against sets of page numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.model import PAGE_BYTES
from cachefs.core.pages import PageMap, page_count, page_span, range_bytes, split

SIZES = st.integers(0, 40 * PAGE_BYTES)


@given(SIZES, st.data())
def test_a_map_is_a_set_of_pages(size: int, data: st.DataObject) -> None:
    count = page_count(size)
    have = data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=count)) if count else set()
    pages = PageMap(size)
    for page in have:
        pages.add(page)
        pages.add(page)
    assert pages.present_count == len(have)
    assert pages.complete == (len(have) == count)
    assert pages.present_bytes == sum(range_bytes(size, page, page + 1) for page in have)
    first = data.draw(st.integers(0, count))
    end = data.draw(st.integers(first, count))
    inside = have & {*range(first, end)}
    assert pages.bytes_in(first, end) == sum(range_bytes(size, one, one + 1) for one in inside)
    taken = data.draw(st.sets(st.integers(0, 45)))
    found = list(pages.missing(first, end, sum(1 << page for page in taken)))
    absent = {page for page in range(first, end) if page not in have | taken}
    assert {page for run in found for page in range(*run)} == absent
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found)), "runs touch"
    assert pages.run_end(first) == min(set(range(first, count + 1)) - have)
    assert PageMap(size, pages.bits).present_count == len(have)


@given(SIZES, st.integers(1, 9))
def test_split_covers_once(size: int, most: int) -> None:
    pieces = list(split(0, page_count(size), most))
    assert [page for piece in pieces for page in range(*piece)] == list(range(page_count(size)))
    assert all(0 < end - first <= most for first, end in pieces)
    assert sum(range_bytes(size, *piece) for piece in pieces) == size


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 30))
def test_a_span_holds_its_bytes(offset: int, size: int) -> None:
    first, end = page_span(offset, size)
    assert first * PAGE_BYTES <= offset < (first + 1) * PAGE_BYTES
    assert (end - 1) * PAGE_BYTES < offset + size <= end * PAGE_BYTES


def test_pages_beyond_the_file_are_refused() -> None:
    with pytest.raises(ValueError):
        PageMap(PAGE_BYTES, 0b10)
    with pytest.raises(ValueError):
        PageMap(PAGE_BYTES).add(1)
    assert PageMap(0).complete
