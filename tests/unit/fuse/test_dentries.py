"""The metadata cache is bounded, forgets the unused, and never keeps an outdated answer."""

from __future__ import annotations

from cachefs.core.invalidation_log import InvalidationLog
from cachefs.core.model import Inode, Kind
from cachefs.core.two_generation_map import TwoGenerationMap
from cachefs.fuse.dentries import MetadataCache, decode_inodes, encode_inode


def put(cache: MetadataCache, parent: int, name: bytes, inode: Inode, expires_at: float) -> None:
    cache.put_inode(inode.ino, encode_inode(inode), expires_at)
    cache.put_name(parent, name, inode, expires_at)


def test_generations_keep_what_is_used() -> None:
    items: TwoGenerationMap[int, int] = TwoGenerationMap(100)
    for number in range(10_000):
        items.put(number, number)
        assert items.get(0) == 0 or number == 0, "used all the time, so it stays"
        assert len(items) <= 100
    assert items.get(5000) is None


def test_a_name_is_answered_until_it_expires() -> None:
    cache = MetadataCache(100)
    inode = Inode(7, Kind.FILE, size=3)
    put(cache, 1, b"a", inode, 10.0)
    assert cache.lookup(1, b"a", 4.0) == (inode, 6.0)
    assert cache.lookup(1, b"a", 10.0) is None
    assert cache.current(7, 10.0) is None
    assert cache.inode(7) == inode, "what an ino is does not expire"


def test_a_missing_name_is_an_answer() -> None:
    cache = MetadataCache(100)
    cache.put_name(1, b"a", None, 10.0)
    assert cache.lookup(1, b"a", 4.0) == (None, 6.0)


def test_a_name_without_its_inode_is_asked_again() -> None:
    cache = MetadataCache(100)
    put(cache, 1, b"a", Inode(7, Kind.FILE), 10.0)
    cache.forget_inode(7)
    assert cache.lookup(1, b"a", 1.0) is None


def test_a_name_does_not_lead_to_another_file_of_its_ino() -> None:
    cache = MetadataCache(100)
    put(cache, 1, b"lost", Inode(7, Kind.FILE, nonce=1), 10.0)
    other = Inode(7, Kind.FILE, nonce=2)
    put(cache, 1, b"other", other, 10.0)
    assert cache.lookup(1, b"lost", 1.0) is None
    assert cache.lookup(1, b"other", 1.0) == (other, 9.0)


def test_invalidation_ends_trust_and_keeps_what_the_ino_is() -> None:
    cache = MetadataCache(100)
    put(cache, 1, b"a", Inode(7, Kind.FILE), 10.0)
    put(cache, 1, b"b", Inode(8, Kind.FILE), 10.0)
    cache.invalidate(1, b"a")
    assert cache.lookup(1, b"a", 1.0) is None
    assert cache.current(7, 1.0) is None
    assert cache.inode(7) is not None
    assert cache.lookup(1, b"b", 1.0) is not None
    cache.invalidate_everything()
    assert cache.lookup(1, b"b", 1.0) is None
    assert cache.current(8, 1.0) is None
    assert cache.inode(8) is not None


def test_answers_asked_for_before_an_invalidation_are_outdated() -> None:
    noted = InvalidationLog()
    asked_at = noted.position
    noted.note(1, b"a")
    assert noted.is_outdated(asked_at, 1, b"a")
    assert not noted.is_outdated(asked_at, 1, b"b")
    assert not noted.is_outdated(noted.position, 1, b"a")
    noted.note_everything()
    assert noted.is_outdated(asked_at, 1, b"b")


def test_what_is_noted_is_bounded_on_the_safe_side() -> None:
    noted = InvalidationLog()
    noted.note(1, b"first")
    asked_at = noted.position - 1
    for number in range(100_000):
        noted.note(2, b"%d" % number)
    assert noted.is_outdated(asked_at, 1, b"first")
    assert noted.is_outdated(asked_at, 1, b"never noted"), "not told apart any more: distrusted"


def test_a_page_is_recorded_like_its_rows_one_by_one() -> None:
    rows = [(b"f%d" % n, Inode(10 + n, Kind(1 + n % 3), size=n)) for n in range(30)]
    listed = [(name, inode, encode_inode(inode)) for name, inode in rows]
    page, single = MetadataCache(1000), MetadataCache(1000)
    page.put_listing(1, listed, 10.0)
    for name, inode in rows:
        put(single, 1, name, inode, 10.0)
        if inode.kind is Kind.DIRECTORY:
            single.put_parent(inode.ino, 1)
    for cache in (page, single):
        for name, inode in rows:
            assert cache.lookup(1, name, 4.0) == (inode, 6.0)
            assert cache.current(inode.ino, 4.0) == (inode, 6.0)
            assert cache.parent(inode.ino) == (1 if inode.kind is Kind.DIRECTORY else inode.ino)


def test_only_other_records_of_known_inos_count_as_changed() -> None:
    cache = MetadataCache(100)
    put(cache, 1, b"a", Inode(7, Kind.FILE, nonce=1), 10.0)
    put(cache, 1, b"b", Inode(8, Kind.FILE, nonce=1), 10.0)
    other = Inode(7, Kind.FILE, nonce=2)
    rows = [(b"a", other), (b"b", Inode(8, Kind.FILE, nonce=1)), (b"c", Inode(9, Kind.FILE))]
    listed = [(name, inode, encode_inode(inode)) for name, inode in rows]
    assert cache.changed(listed) == [other]


def test_pages_keep_the_cache_bounded() -> None:
    cache = MetadataCache(100)
    for first in range(0, 5000, 40):
        inodes = [Inode(10 + first + n, Kind.FILE) for n in range(40)]
        cache.put_listing(1, [(b"f%d" % i.ino, i, encode_inode(i)) for i in inodes], 10.0)
        assert max(cache.sizes()) <= 100


def test_records_are_decoded_together() -> None:
    inodes = [Inode(10 + n, Kind.FILE, etag="x" * n) for n in range(300)]
    assert decode_inodes([encode_inode(inode) for inode in inodes]) == inodes
    assert decode_inodes([]) == []
