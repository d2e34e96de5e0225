"""Names that events reported: what ends a mark, and the limits."""

from __future__ import annotations

import pytest

from master.state import unchecked
from master.state.unchecked import ALL, UncheckedNames


def test_a_mark_ends_with_a_request_that_began_after_it() -> None:
    names = UncheckedNames()
    before = names.marks
    assert names.mark(7, b"a") == b"a"
    names.checked(7, b"a", before)
    assert names.covers(7, b"a"), "the request was older than the event"
    began = names.marks
    names.mark(7, b"a")
    names.checked(7, b"a", began)
    assert names.covers(7, b"a"), "the name changed again meanwhile"
    names.checked(7, b"a", names.marks)
    assert not names.covers(7, b"a")
    assert not names.concerns(7)
    assert len(names) == 0


def test_a_listing_ends_the_marks_before_it() -> None:
    names = UncheckedNames()
    for name in (b"a", b"b"):
        names.mark(7, name)
    names.mark(8, b"a")
    began = names.marks
    names.mark(7, b"c")
    names.listed(7, began)
    assert [names.covers(7, name) for name in (b"a", b"b", b"c")] == [False, False, True]
    assert names.covers(8, b"a")
    assert len(names) == 2


def test_a_directory_with_many_is_unchecked_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchecked, "MAX_IN_DIRECTORY", 3)
    names = UncheckedNames()
    for name in (b"a", b"b", b"c"):
        assert names.mark(7, name) == name
    assert names.mark(7, b"a") == b"a", "it is marked already"
    assert names.mark(7, b"d") == ALL
    assert names.covers(7, b"whatever")
    assert not names.covers(8, b"d")
    assert len(names) == 1
    names.checked(7, b"d", names.marks)
    assert names.covers(7, b"d"), "one stat says nothing of the others"
    names.listed(7, names.marks)
    assert len(names) == 0


def test_more_than_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchecked, "MAX_NAMES", 3)
    names = UncheckedNames()
    assert [names.mark(ino, b"a") for ino in range(4)] == [b"a", b"a", b"a", None]
    assert names.mark(2, b"a") == b"a"
    names.forget(0)
    assert names.mark(3, b"a") == b"a"
    assert len(names) == 3


def test_the_directory_that_waits_longest_is_first() -> None:
    names = UncheckedNames()
    assert names.directories() == []
    for ino in (2, 1, 2):
        names.mark(ino, b"a")
    assert names.directories() == [2, 1]
    assert names.names(2) == [b"a"]
    names.checked(2, b"a", names.marks)
    names.mark(2, b"b")
    assert names.directories() == [1, 2]
    assert names.names(3) == []
