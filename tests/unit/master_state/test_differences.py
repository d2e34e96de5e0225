"""What the comparison of a directory means for people, from its parts in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.model import Fingerprint, Inode, Kind
from cachefs.core.syncs import ChangeKind
from connectors.base import Entry
from master.state.differences import Difference, Differences, Subdirectories
from master.state.merge import Action, Change
from master.state.records import Stored, name_of

ADDED, REPLACED, GONE = ChangeKind.ADDED, ChangeKind.REPLACED, ChangeKind.GONE


def change(action: Action, key: bytes) -> Change:
    kind = Kind.DIRECTORY if key.endswith(b"/") else Kind.FILE
    entry = None if action is Action.REMOVE else Entry(name_of(key), Fingerprint(kind))
    stored = None if action is Action.INSERT else Stored(Inode(7, kind), 1.0)
    return Change(action, key, entry, stored)


def insert(key: bytes) -> Change:
    return change(Action.INSERT, key)


def remove(key: bytes) -> Change:
    return change(Action.REMOVE, key)


def test_in_a_listed_directory_new_names_were_added() -> None:
    found = Differences().add(
        [insert(b"a"), insert(b"b/"), remove(b"c"), remove(b"d/"), change(Action.REPLACE, b"e")],
        None,
        was_listed=True,
    )
    assert sorted(found, key=lambda d: d.name) == [
        Difference(ADDED, b"a", False),
        Difference(ADDED, b"b", True),
        Difference(GONE, b"c", False),
        Difference(GONE, b"d", True),
        Difference(REPLACED, b"e", False),
    ]


def test_in_a_directory_seen_for_the_first_time_new_names_are_no_change() -> None:
    changes = [insert(b"a"), insert(b"b/"), remove(b"c"), change(Action.REPLACE, b"e")]
    found = Differences().add(changes, None, was_listed=False)
    assert {d.name: d.kind for d in found} == {b"c": GONE, b"e": REPLACED}


def test_other_attributes_of_the_same_bytes_are_no_change() -> None:
    changes = [change(Action.UPDATE, b"a"), change(Action.UPDATE, b"b/")]
    assert Differences().add(changes, None, was_listed=True) == []


def test_a_file_that_became_a_directory_was_replaced_and_the_other_way_round() -> None:
    changes = [remove(b"a"), insert(b"a/"), insert(b"b"), remove(b"b/")]
    for was_listed in (True, False):
        found = Differences().add(changes, None, was_listed=was_listed)
        assert found == [Difference(REPLACED, b"a", True), Difference(REPLACED, b"b", False)]


def test_a_file_waits_for_its_directory_over_parts() -> None:
    differences = Differences()
    assert differences.add([remove(b"a"), remove(b"a!")], b"a!", was_listed=True) == []
    later = differences.add([insert(b"a.txt")], b"a.txt", was_listed=True)
    assert later == [Difference(GONE, b"a!", False)]
    last = differences.add([insert(b"a/")], b"a/", was_listed=True)
    assert last == [Difference(REPLACED, b"a", True), Difference(ADDED, b"a.txt", False)]
    assert differences.add([], None, was_listed=True) == []


def test_the_end_ends_what_waits() -> None:
    differences = Differences()
    assert differences.add([remove(b"a")], b"a", was_listed=True) == []
    assert differences.add([], None, was_listed=True) == [Difference(GONE, b"a", False)]


@given(
    st.dictionaries(
        st.text("ab!.", min_size=1, max_size=3).map(str.encode),
        st.sampled_from(["gone", "added", "gone/", "added/", "to file", "to directory"]),
    ),
    st.integers(1, 4),
)
def test_parts_of_any_size_say_what_the_whole_says(what: dict[bytes, str], size: int) -> None:
    changes = []
    for name, happened in what.items():
        slash = name + b"/"
        changes += {
            "gone": [remove(name)],
            "added": [insert(name)],
            "gone/": [remove(slash)],
            "added/": [insert(slash)],
            "to file": [insert(name), remove(slash)],
            "to directory": [remove(name), insert(slash)],
        }[happened]
    changes.sort(key=lambda c: c.key)
    differences, found = Differences(), []
    for start in range(0, len(changes), size):
        part = changes[start : start + size]
        found += differences.add(part, part[-1].key, was_listed=True)
    found += differences.add([], None, was_listed=True)
    assert sorted(found, key=lambda d: d.name) == sorted(
        (_meaning(name, happened) for name, happened in what.items()), key=lambda d: d.name
    )


def _meaning(name: bytes, happened: str) -> Difference:
    kind = {"g": GONE, "a": ADDED, "t": REPLACED}[happened[0]]
    return Difference(kind, name, happened.endswith(("/", "directory")))


def test_waiting_names_come_out_in_order_with_their_marks() -> None:
    names = [(b"d%05d" % n, n % 3 == 0) for n in range(3500)]
    waiting, found = Subdirectories(), []
    for n, (name, mark) in enumerate(names):
        waiting.add(name, mark)
        if n % 100 == 50 and (item := waiting.pop()) is not None:
            found.append(item)
    while (item := waiting.pop()) is not None:
        found.append(item)
    assert found == names
