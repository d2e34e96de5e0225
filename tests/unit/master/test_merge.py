"""A listing merged page by page makes the stored names what the origin shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefs.core.errors import OriginError, Stale
from cachefs.core.model import ROOT_INO, Fingerprint, Kind, NamespaceId
from connectors.base import Entry, order_key
from master.state.merge import Action, Pages, compare, inode_of, plan
from master.state.records import Stored
from master.store import transaction
from master.store.base import Table
from master.store.snapshot import Names
from master.store.transaction import initialise, transact
from tests.services.examples import examples
from tests.services.memory_store import MemoryStore

T0, T1, T2 = 1_000.0, 2_000.0, 3_000.0
DIRECTORY = Fingerprint(Kind.DIRECTORY)


def file(name: bytes, tag: str = "1") -> Entry:
    return Entry(name, Fingerprint(Kind.FILE, len(tag), 5, tag))


def directory(name: bytes) -> Entry:
    return Entry(name, DIRECTORY)


# Few letters around '/', so that `a`, `a!`, `a.`, `a/`, `a0` and their prefixes meet all the time.
names = st.lists(st.sampled_from(list(b"a!.0\xff")), min_size=1, max_size=4).map(bytes)
entries = st.builds(
    lambda name, tag: directory(name) if tag == "d" else file(name, tag),
    names,
    st.sampled_from(["1", "2", "d"]),
)
origins = st.lists(entries, max_size=25).map(
    lambda found: sorted({key_of(e): e for e in found}.items())
)


def key_of(entry: Entry) -> bytes:
    return order_key(entry.name, entry.fingerprint.kind is Kind.DIRECTORY)


def shown(origin: list[tuple[bytes, Entry]]) -> dict[bytes, Entry]:
    """What a directory shows: a directory wins over a file."""
    found = {entry.name: entry for _, entry in origin}
    found |= {e.name: e for _, e in origin if e.fingerprint.kind is Kind.DIRECTORY}
    return found


def pages_of(origin: list[tuple[bytes, Entry]], size: int) -> Iterator[list[Entry]]:
    """As a connector yields them: a directory wins within a page."""
    for start in range(0, len(origin), size):
        page = origin[start : start + size]
        winners = shown(page)
        yield [entry for _, entry in page if winners[entry.name] == entry]


@contextmanager
def store() -> Iterator[MemoryStore]:
    opened = MemoryStore()
    try:
        initialise(opened, NamespaceId(bytes(16)))
        yield opened
    finally:
        opened.close()


def merge_all(
    opened: MemoryStore, origin: list[tuple[bytes, Entry]], size: int, at: float
) -> Iterator[bytes | None]:
    """Merges a whole listing into the root; yields the frontier after each batch."""
    pages = Pages()
    batches = [pages.add(page) for page in pages_of(origin, size)]
    for batch in [*batches, pages.end()]:
        rest = batch
        while True:
            todo = rest
            merged = transact(
                opened, lambda t, b=todo: t.merge(ROOT_INO, b, at, at, frozenset())
            ).result()
            if merged.resume_after is None:
                break
            rest = rest.rest(merged.resume_after)
        yield batch.safe_below
    transact(opened, lambda t: t.complete_listing(ROOT_INO, at, 0)).result()


def stored(opened: MemoryStore) -> dict[bytes, Stored]:
    """Names by order key."""
    with opened.snapshot() as reader:
        return dict(Names(reader).children(ROOT_INO, b"", None, 1000))


def announced(opened: MemoryStore) -> set[bytes]:
    with opened.snapshot() as reader:
        events = Names(reader).events_after(0, 1000)
    return {name for _, event in events for _, name in event}


def as_entry(found: Stored) -> Fingerprint:
    return found.inode.fingerprint


@settings(max_examples=examples(300), deadline=None)
@given(origins, origins, st.integers(1, 7), st.integers(1, 7), st.sampled_from([1, 3, 4000]))
def test_a_listing_makes_the_store_what_the_origin_shows(
    old: list[tuple[bytes, Entry]],
    new: list[tuple[bytes, Entry]],
    old_size: int,
    new_size: int,
    stored_per_merge: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch, store() as opened:
        patch.setattr(transaction, "MAX_STORED_PER_MERGE", stored_per_merge)
        list(merge_all(opened, old, old_size, T0))
        before = stored(opened)
        assert {k: as_entry(s) for k, s in before.items()} == {
            key_of(e): e.fingerprint for e in shown(old).values()
        }
        assert announced(opened) == set(), "a first listing has nothing to take back"
        want = {key_of(e): e.fingerprint for e in shown(new).values()}
        for frontier in merge_all(opened, new, new_size, T1):
            now = stored(opened)
            decided = {k: v for k, v in want.items() if frontier is None or k < frontier}
            seen = {k: as_entry(s) for k, s in now.items() if frontier is None or k < frontier}
            assert seen == decided, "what is behind the frontier is what the origin shows"
        after = stored(opened)
        with opened.snapshot() as reader:
            parents = reader.scan(Table.PARENTS, b"", b"\xff" * 9, 1000)
    live = {s.inode.ino for s in after.values()} | {ROOT_INO}
    assert {int.from_bytes(ino, "big") for ino, _ in parents} == live
    changed = {
        (key[:-1] if key.endswith(b"/") else key)
        for key in before.keys() | after.keys()
        if key not in before or key not in after or as_entry(before[key]) != as_entry(after[key])
    }
    assert changed <= announced(opened)
    for key, was in before.items():
        if key in after and as_entry(was) == as_entry(after[key]):
            assert after[key].inode == was.inode, "unchanged names keep ino and nonce"
        elif key in after:
            assert after[key].inode.ino != was.inode.ino
    inos = [s.inode.ino for s in [*before.values(), *after.values()]]
    assert len(set(inos)) == len({s.inode for s in [*before.values(), *after.values()]})


@settings(max_examples=examples(200), deadline=None)
@given(origins, st.integers(1, 5))
def test_few_files_wait_and_hidden_ones_are_counted(
    origin: list[tuple[bytes, Entry]], size: int
) -> None:
    pages = Pages()
    hidden_by_connector = len(origin) - sum(len(p) for p in pages_of(origin, size))
    hidden = 0
    for page in pages_of(origin, size):
        batch = pages.add(page)
        hidden += batch.hidden
        assert batch.upto is not None
        assert all(batch.upto.startswith(name) for name in batch.waiting)
    assert hidden + hidden_by_connector == len(origin) - len(shown(origin))


def test_a_listing_out_of_order_is_refused() -> None:
    pages = Pages()
    pages.add([file(b"m")])
    with pytest.raises(OriginError, match="order"):
        pages.add([file(b"b")])


def test_what_was_seen_after_the_listing_began_stays() -> None:
    newer = Stored(inode_of(file(b"x", "new"), 7, 1), T1 + 1)
    assert plan([(b"x", newer)], [(b"x", file(b"x", "old"))], frozenset(), T1, T2) == []
    assert plan([(b"x", newer)], [], frozenset(), T1, T2) == []
    twin = Stored(inode_of(directory(b"x"), 7, 1), T1 + 1)
    assert plan([(b"x/", twin)], [(b"x", file(b"x"))], frozenset(), T1, T2) == []


def test_a_time_from_the_future_is_no_reason_to_keep_a_name() -> None:
    ahead = Stored(inode_of(file(b"x"), 7, 1), T2 + 1)
    (change,) = plan([(b"x", ahead)], [], frozenset(), T1, T2)
    assert change.action is Action.REMOVE


@pytest.mark.parametrize(
    ("old", "new", "action"),
    [
        (file(b"x"), file(b"x"), None),
        (file(b"x"), file(b"x", "2"), Action.REPLACE),
        (file(b"x"), Entry(b"x", Fingerprint(Kind.FILE, 1, 6, "1")), Action.REPLACE),
        (file(b"x"), Entry(b"x", file(b"x").fingerprint, 0o600, 1, 1), Action.UPDATE),
        (directory(b"x"), Entry(b"x", Fingerprint(Kind.DIRECTORY, 0, 9)), Action.UPDATE),
        (directory(b"x"), directory(b"x"), None),
        (file(b"x"), Entry(b"x", Fingerprint(Kind.SYMLINK, 1, 5, "1")), Action.REPLACE),
        (
            Entry(b"x", Fingerprint(Kind.SYMLINK, 1, 5), target=b"a"),
            Entry(b"x", Fingerprint(Kind.SYMLINK, 1, 5), target=b"b"),
            Action.REPLACE,
        ),
    ],
)
def test_what_a_difference_means(old: Entry, new: Entry, action: Action | None) -> None:
    assert compare(inode_of(old, 7, 1), new) is action


def test_a_directory_removed_while_it_is_listed() -> None:
    with store() as opened:
        pages = Pages()
        batch = pages.add([file(b"x")])
        with pytest.raises(Stale):
            transact(opened, lambda t: t.merge(99, batch, T0, T0, frozenset())).result()
