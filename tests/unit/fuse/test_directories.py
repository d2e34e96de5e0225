"""Cookies find their place: in order, after seeks and changes, in a process that knows nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.model import Inode, Kind
from cachefs.fuse.directories import (
    DOTS,
    DirectoryHandle,
    FetchPage,
    Mark,
    Page,
    cookie_of,
)

PAGE = 5


def page_of(names: list[bytes], mark: Mark) -> Page:
    """What a server lists after an order key."""
    after = [name for name in names if name > mark.after] if mark.after else names
    shown = after[:PAGE]
    inodes = [Inode(1, Kind.FILE)] * len(shown)
    return Page(mark.start, shown, inodes, shown[-1] if len(after) > PAGE else b"", 0.0, 0)


def next_rows(handle: DirectoryHandle, names: list[bytes], cookie: int) -> list[tuple[bytes, int]]:
    """(name, its cookie) of what is emitted for one request; [] at the end."""
    place = handle.position(cookie)
    for _ in range(1000):
        if not isinstance(place, FetchPage):
            page = handle.page
            assert page is not None
            first = page.start + place + DOTS + 1
            return [(name, cookie_of(n, name)) for n, name in enumerate(page.names[place:], first)]
        handle.put(page_of(names, place.mark))
        place = handle.first_row() if place.exactly else handle.position(cookie)
    raise AssertionError("no end")


def read_all(
    handle: DirectoryHandle, names: list[bytes], cookie: int = 0, take: int = PAGE
) -> list[bytes]:
    found = []
    while rows := next_rows(handle, names, cookie)[:take]:
        found += [name for name, _ in rows]
        cookie = rows[-1][1]
    return found


def some_names(count: int) -> list[bytes]:
    return [b"n%04d" % (10 * number) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 10, 23])
@pytest.mark.parametrize("take", [1, 3, 5])
def test_in_order_every_name_once(count: int, take: int) -> None:
    names = some_names(count)
    assert read_all(DirectoryHandle(1, 0), names, take=take) == names


@given(st.integers(0, 40), st.data())
def test_any_cookie_after_any_other(count: int, data: st.DataObject) -> None:
    names = some_names(count)
    handle = DirectoryHandle(1, 0)
    cookies = [0, *(cookie_of(DOTS + 1 + n, name) for n, name in enumerate(names))]
    read_all(handle, names)
    for index in data.draw(st.lists(st.integers(0, count), max_size=10)):
        rows = next_rows(handle, names, cookies[index])
        assert [name for name, _ in rows] == names[index : index + len(rows)]
        assert rows or index == count


@given(st.integers(1, 40), st.data())
def test_a_new_process_counts_from_the_start(count: int, data: st.DataObject) -> None:
    names = some_names(count)
    index = data.draw(st.integers(0, count))
    cookie = cookie_of(DOTS + index, names[index - 1]) if index else 0
    assert read_all(DirectoryHandle(1, 0), names, cookie) == names[index:]


def test_changes_while_reading_repeat_nothing_and_lose_nothing_that_stays() -> None:
    """Seed printed on failure: names come and go anywhere while a reader goes on."""
    for seed in range(200):
        rng = random.Random(seed)
        names = some_names(40)
        stays = set(rng.sample(names, 20))
        handle, cookie, found = DirectoryHandle(1, 0), 0, []
        while rows := next_rows(handle, names, cookie)[: rng.randint(1, PAGE)]:
            found += [name for name, _ in rows]
            cookie = rows[-1][1]
            names = sorted({name for name in names if name in stays or rng.random() < 0.8})
            names = sorted({*names, b"n%04d" % rng.randrange(400)})
        assert len(found) == len(set(found)), f"seed {seed}"
        assert stays <= set(found), f"seed {seed}"


def test_a_seek_back_after_a_removal_finds_its_entry() -> None:
    names = some_names(20)
    handle = DirectoryHandle(1, 0)
    read_all(handle, names)
    cookie = cookie_of(DOTS + 1 + 2, names[2])
    names = names[1:]  # one before it is gone, so it moved
    assert next_rows(handle, names, cookie)[0][0] == b"n0030"


def test_marks_are_bounded() -> None:
    handle = DirectoryHandle(1, 0)
    for number in range(20_000):
        handle.put(Page(number, [b"a"], [Inode(1, Kind.FILE)], b"k%d" % number, 0.0, 0))
    assert len(handle.marks) <= 4096
    assert handle.mark_before(15_000).start <= 15_000
    assert handle.mark_before(0) == Mark(0, b"")
