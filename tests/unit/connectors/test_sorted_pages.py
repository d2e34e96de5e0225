"""Listings without an order: every name once and in order, in bounded memory, and no file left."""

from __future__ import annotations

import errno
import io
import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import NoSpace, Unreachable
from cachefs.core.model import Fingerprint, Kind
from connectors import sorted_pages as module
from connectors.base import Entry, Page, order_key
from connectors.sorted_pages import sorted_pages

NAMES = 60_000


def entry(name: bytes, kind: Kind = Kind.FILE) -> Entry:
    version = Fingerprint(kind, 7, -5, "é") if kind is Kind.FILE else Fingerprint(kind)
    return Entry(name, version, 0o640, 1, 2, b"target" if kind is Kind.SYMLINK else b"")


def in_pages(entries: list[Entry], size: int = 100, hidden: int = 0) -> Iterator[Page]:
    for start in range(0, len(entries), size):
        yield Page(entries[start : start + size], hidden)


def shuffled(count: int) -> list[Entry]:
    found = [entry(b"%08d" % number) for number in range(count)]
    random.Random(4).shuffle(found)
    return found


@given(
    st.dictionaries(st.binary(min_size=1, max_size=4), st.sampled_from(Kind)),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_every_name_once_and_in_order(kinds: dict[bytes, Kind], size: int, run: int) -> None:
    given_ = [entry(name, kind) for name, kind in kinds.items()]
    pages = list(sorted_pages(in_pages(given_, size, hidden=1), None, run))
    found = [one for page in pages for one in page.entries]
    assert found == sorted(
        given_, key=lambda e: order_key(e.name, e.fingerprint.kind is Kind.DIRECTORY)
    )
    assert sum(page.hidden for page in pages) == -(-len(given_) // size)
    assert [page.last for page in pages if page.entries] == [False] * (
        len([page for page in pages if page.entries]) - 1
    ) + [True] * bool(given_)


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.sampled_from(Kind)), max_size=40),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_what_is_listed_again_is_there_once(
    named: list[tuple[bytes, Kind]], size: int, run: int
) -> None:
    """Adobe S3Mock 5.2.0 and fake-gcs-server put every directory on each page."""
    given_ = [entry(name, kind) for name, kind in named]
    found = [
        one for page in sorted_pages(in_pages(given_, size), None, run) for one in page.entries
    ]
    keys = [order_key(e.name, e.fingerprint.kind is Kind.DIRECTORY) for e in found]
    wanted = {order_key(e.name, e.fingerprint.kind is Kind.DIRECTORY) for e in given_}
    assert keys == sorted(wanted)


def test_a_page_has_a_thousand_names(tmp_path: Path) -> None:
    pages = list(sorted_pages(in_pages(shuffled(2500)), str(tmp_path), 600))
    assert [len(page.entries) for page in pages] == [1000, 1000, 500]


def test_no_file_has_a_name_or_stays(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    pages = sorted_pages(in_pages(shuffled(2000)), str(tmp_path), 600)
    next(pages)
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before + 1
    pages.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_listing_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Iterator[Page]:
        yield from in_pages(shuffled(2000))
        raise Unreachable("cut")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Unreachable):
        list(sorted_pages(failing(), str(tmp_path), 600))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.tempfile, "TemporaryFile", full)
    with pytest.raises(NoSpace, match="No space left"):
        list(sorted_pages(in_pages(shuffled(2000)), str(tmp_path), 600))


def test_a_disk_that_returns_no_names_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(module.tempfile, "TemporaryFile", lambda **_: Failing())
    with pytest.raises(NoSpace, match="Input/output error"):
        list(sorted_pages(in_pages(shuffled(2000)), str(tmp_path), 600))


def test_memory_is_that_of_a_run(tmp_path: Path) -> None:
    """A sort in memory keeps every entry, here 300 bytes each."""

    def many() -> Iterator[Page]:
        for start in range(NAMES, 0, -1000):
            yield Page([entry(b"%08d" % (start - number)) for number in range(1000)])

    tracemalloc.start()
    try:
        count = sum(len(page.entries) for page in sorted_pages(many(), str(tmp_path), 5000))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == NAMES
    assert most < 6 << 20
