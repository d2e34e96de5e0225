"""A status has dated conditions, and is patched where it differs."""

from __future__ import annotations

import msgspec

from cachefs.kube import status
from cachefs.kube.status import MAX_MESSAGE, Phase, Status, Type


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = status.dated(Status().told(Type.LOADED, False, "Loading"), "t1", 1)
    same = status.dated(first.told(Type.LOADED, False, "Stopped", "why"), "t2", 2)
    other = status.dated(same.told(Type.LOADED, True, "Loaded"), "t3", 2)
    times = [one.conditions[0].last_transition_time for one in (first, same, other)]
    assert times == ["t1", "t1", "t3"]
    assert [one.observed_generation for one in (first, same)] == [1, 2]


def test_the_patch_has_what_differs_and_leaves_what_is_unknown() -> None:
    before = {"phase": "Loading", "job": 3, "files": 9, "future": 1}
    after = status.parse(before).with_(phase=Phase.LOADED, files=0)
    assert status.patch_of(before, after) == {"phase": "Loaded", "files": None}


def test_no_difference_is_no_patch() -> None:
    one = status.dated(Status(phase=Phase.LOADING).told(Type.MASTER, True, "Reachable"), "t", 1)
    document = msgspec.to_builtins(one)
    assert status.patch_of({}, Status()) == {"phase": "Pending"}
    assert status.patch_of(document, status.parse(document)) == {}


def test_a_message_is_one_line_of_bounded_length() -> None:
    told = Status().told(Type.LOADED, False, "Failed", "a\n  b " + "x" * 5000).conditions[0]
    assert told.message.startswith("a b x")
    assert len(told.message) == MAX_MESSAGE


def test_the_share_is_never_rounded_up() -> None:
    assert status.share(0, 0, 0) == ""
    assert status.share(0, 0, 3) == "100 % of 0 B"
    assert status.share(999, 1000, 1).startswith("99 %")
    assert status.share(2000, 1000, 1).startswith("100 %")
