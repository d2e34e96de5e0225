"""A reply to READDIRPLUS equals its entries, encoded one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.model import MAX_INO, Inode, Kind, nodeid
from cachefs.fuse.attributes import Defaults
from cachefs.fuse.directories import DOTS, HASH_BITS, Entries, Page, dots_after
from cachefs.fuse.kernel.attributes import Attributes
from cachefs.fuse.kernel.listing_replies import MAX_OWNERS, ListingReplies

DEFAULTS = Defaults(uid=1000, gid=1001, file_mode=0o640, dir_mode=0o750)
NAMES = st.binary(min_size=1, max_size=255).filter(
    lambda name: not {0, 47} & set(name) and name not in (b".", b"..")
)
INODES = st.builds(
    Inode,
    ino=st.integers(2, MAX_INO),
    kind=st.sampled_from(Kind),
    size=st.integers(0, 1 << 62),
    mtime_ns=st.integers(-(10**18), 10**19),
    nonce=st.integers(0, (1 << 64) - 1),
    mode=st.integers(-1, 0o7777),
    uid=st.integers(-1, (1 << 32) - 1),
    gid=st.integers(-1, (1 << 32) - 1),
)


def moved(ino: int) -> int:
    return nodeid(ino, 3) if ino % 2 else ino


def replies(
    *, has_moved: bool = True, generations: bool = True
) -> tuple[ListingReplies, Attributes]:
    current = moved if has_moved else lambda ino: ino
    attributes = Attributes(DEFAULTS, current, generations=generations)
    return ListingReplies(attributes, DEFAULTS, lambda: has_moved), attributes


def some_entries(
    rows: list[tuple[bytes, Inode]], start: int, place: int, outdated: set[bytes]
) -> Entries:
    page = Page(start, [name for name, _ in rows], [inode for _, inode in rows], b"", 0.0, 0)
    cookie = 0 if start + place == 0 else (start + place + DOTS) << HASH_BITS
    test = outdated.__contains__ if outdated else None
    return Entries(dots_after(cookie, 7, 1), page, place, 12.25, lambda: test)


@given(
    st.lists(st.tuples(NAMES, INODES), max_size=20),
    st.integers(0, 5000),
    st.integers(0, 20),
    st.integers(0, 8192),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_a_reply_is_its_entries(
    rows: list[tuple[bytes, Inode]],
    start: int,
    place: int,
    room: int,
    has_moved: bool,
    generations: bool,
    data: st.DataObject,
) -> None:
    names = sorted(name for name, _ in rows)
    outdated = set(data.draw(st.lists(st.sampled_from(names)))) if names else set()
    encoder, attributes = replies(has_moved=has_moved, generations=generations)
    entries = some_entries(rows, start, min(place, len(rows)), outdated)
    for encode, one in (
        (encoder.plus, attributes.direntplus),
        (encoder.names, attributes.dirent),
    ):
        expected, left = b"", room
        for entry in entries:
            record = one(entry)
            left -= len(record)
            if left < 0:
                break
            expected += record
        assert encode(entries, room) == expected


def test_the_packed_owners_are_bounded() -> None:
    encoder, _ = replies()
    rows = [(b"n%d" % n, Inode(2, Kind.FILE, mode=0o600, uid=n)) for n in range(2 * MAX_OWNERS)]
    encoder.plus(some_entries(rows, 0, 0, set()), 1 << 30)
    assert len(encoder._owners) <= MAX_OWNERS
