"""What a node's cache must hold: an answer no longer than it is valid, nothing that was invalidated
while it was under way, the bytes of an ino for as long as its name leads there."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefs.core.messages import Dentry, Found, Listing
from cachefs.core.model import ContentId, Inode, Origin
from tests.services.examples import examples
from tests.unit.worker_cluster.fake_master import NAMESPACE, directory, encode, file
from worker.names.node_cache import NodeCache
from worker.names.pages import ListingPages


def cache(**limits: int) -> NodeCache:
    return NodeCache(NAMESPACE, **limits)


def origin(inode: Inode, path: bytes, ufs: str = "s3://b") -> Origin:
    content = ContentId.of(NAMESPACE, inode)
    return Origin(content, ufs, path, inode.etag, inode.size, inode.mtime_ns)


def listing(*named: tuple[bytes, Inode], valid_for_s: float = 60.0) -> Listing:
    return Listing([Dentry(n, msgspec.Raw(encode(i))) for n, i in named], b"", valid_for_s)


def put(it: NodeCache, parent: int, name: bytes, inode: Inode | None, now: float = 0.0) -> None:
    assert it.put_found(parent, name, Found(inode, 60.0), it.asked(now))


def test_a_name_is_answered_until_its_time_is_over() -> None:
    it = cache()
    put(it, 1, b"a", file(5), now=100.0)
    assert it.lookup(1, b"a", 150.0) == Found(file(5), 10.0)
    assert it.lookup(1, b"a", 160.0) is None
    assert it.lookup_stale(1, b"a") == file(5)
    assert it.lookup(1, b"b", 150.0) is None


def test_an_absence_is_never_answered_after_its_time() -> None:
    it = cache()
    put(it, 1, b"a", None)
    assert it.lookup(1, b"a", 1.0) == Found(None, 59.0)
    assert it.lookup(1, b"a", 60.0) is None
    assert it.lookup_stale(1, b"a") is None


def test_what_is_valid_for_no_time_tells_where_bytes_are_and_nothing_of_names() -> None:
    it = cache()
    asked = it.asked(0.0)
    it.put_listing(1, b"", 10, listing((b"a", file(5)), valid_for_s=0.0), asked)
    assert it.lookup(1, b"a", 0.0) is None
    assert it.lookup_stale(1, b"a") is None
    assert it.page_stale(1, b"", 10) is None
    it.put_origin(5, origin(file(5), b"x/a"), asked)
    assert it.origin(5) == origin(file(5), b"x/a")


def test_an_answer_that_a_change_overtook_is_not_kept() -> None:
    it = cache()
    asked = it.asked(0.0)
    it.invalidate(1, b"a")
    assert not it.put_found(1, b"a", Found(file(5), 60.0), asked)
    it.put_listing(1, b"", 10, listing((b"a", file(5)), (b"b", file(6))), asked)
    it.put_origin(6, origin(file(6), b"b"), asked)
    assert it.lookup(1, b"a", 0.0) is None
    assert it.lookup(1, b"b", 0.0) == Found(file(6), 60.0)
    assert it.page(1, b"", 10, 0.0) is None
    assert it.origin(6) is None
    put(it, 1, b"a", file(7))
    assert it.lookup(1, b"a", 0.0) == Found(file(7), 60.0)


def test_one_located_file_tells_where_the_others_of_its_directory_are() -> None:
    it = cache()
    asked = it.asked(0.0)
    it.put_listing(9, b"", 10, listing((b"a", file(5)), (b"b", file(6, size=7))), asked)
    assert it.origin(5) is None
    it.put_origin(5, origin(file(5), b"x/y/a"), asked)
    assert it.origin(6) == origin(file(6, size=7), b"x/y/b")


def test_files_at_the_root_of_a_source_are_located_too() -> None:
    it = cache()
    put(it, 1, b"a", file(5))
    put(it, 1, b"b", file(6))
    it.put_origin(5, origin(file(5), b"a"), it.asked(0.0))
    assert it.origin(6) == origin(file(6), b"b")


def test_directories_of_one_origin_are_neighbours() -> None:
    it = cache()
    assert it.neighbourhood(20) == 20
    put(it, 1, b"top", directory(20))
    assert it.neighbourhood(20) == 20, "at the root there may be a source in every directory"
    put(it, 20, b"x", directory(21))
    put(it, 20, b"y", directory(22))
    assert it.neighbourhood(21) == it.neighbourhood(22) == 20
    put(it, 22, b"a", file(5))
    it.put_origin(5, origin(file(5), b"y/a"), it.asked(0.0))
    assert it.neighbourhood(22) == "s3://b"


def test_a_directory_has_no_bytes() -> None:
    it = cache()
    put(it, 1, b"a", file(5))
    put(it, 1, b"d", directory(6))
    it.put_origin(5, origin(file(5), b"a"), it.asked(0.0))
    assert it.origin(6) is None


def test_a_file_whose_name_is_not_known_is_located_by_its_ino_until_something_changes() -> None:
    it = cache()
    it.put_origin(5, origin(file(5), b"x/a"), it.asked(0.0))
    assert it.origin(5) == origin(file(5), b"x/a")
    put(it, 1, b"known", file(7))
    it.invalidate(1, b"known")
    assert it.origin(5) is not None
    it.invalidate(1, b"unknown")
    assert it.origin(5) is None


def test_a_changed_directory_may_have_another_source_below_it() -> None:
    it = cache()
    put(it, 1, b"d", directory(4))
    put(it, 4, b"a", file(5))
    put(it, 4, b"e", directory(6))
    put(it, 6, b"a", file(7))
    it.put_origin(5, origin(file(5), b"d/a"), it.asked(0.0))
    it.put_origin(7, origin(file(7), b"d/e/a"), it.asked(0.0))
    assert it.origin(5) is not None
    assert it.origin(7) is not None
    it.invalidate(1, b"d")
    assert it.origin(5) is None
    assert it.origin(7) is None


def test_a_replaced_file_is_not_located_by_its_old_ino() -> None:
    it = cache()
    put(it, 1, b"a", file(5))
    it.put_origin(5, origin(file(5), b"a"), it.asked(0.0))
    put(it, 1, b"a", file(6))
    assert it.origin(5) is None
    assert it.origin(6) == origin(file(6), b"a")
    assert it.getattr(5, 0.0) is None


def test_attributes_are_those_of_the_name() -> None:
    it = cache()
    put(it, 1, b"a", file(5))
    assert it.getattr(5, 10.0) == Found(file(5), 50.0)
    assert it.put_attributes(Found(file(5), 60.0), it.asked(100.0))
    assert it.lookup(1, b"a", 100.0) == Found(file(5), 60.0)
    it.invalidate(1, b"a")
    assert it.getattr(5, 100.0) is None
    assert it.getattr_stale(5) is None


def test_attributes_without_a_name_go_with_a_change_that_may_be_theirs() -> None:
    it = cache()
    assert it.put_attributes(Found(directory(1), 60.0), it.asked(0.0))
    assert it.getattr(1, 0.0) == Found(directory(1), 60.0)
    it.invalidate(8, b"whatever")
    assert it.getattr(1, 0.0) is None


def test_a_page_is_answered_until_its_time_is_over_or_a_name_in_it_changed() -> None:
    it = cache()
    page = listing((b"a", file(5)))
    it.put_listing(1, b"", 10, page, it.asked(0.0))
    found = it.page(1, b"", 10, 20.0)
    assert found is not None
    assert [(e.name, bytes(e.inode)) for e in found.entries] == [(b"a", encode(file(5)))]
    assert found.valid_for_s == 40.0
    assert it.page(1, b"", 11, 20.0) is None
    assert it.page(1, b"", 10, 60.0) is None
    assert it.page_stale(1, b"", 10) is not None
    it.invalidate(1, b"new")
    assert it.page_stale(1, b"", 10) is None


def test_everything_can_be_forgotten() -> None:
    it = cache()
    asked = it.asked(0.0)
    it.put_listing(1, b"", 10, listing((b"a", file(5)), (b"d", directory(6))), asked)
    it.put_attributes(Found(directory(1), 60.0), asked)
    it.put_origin(5, origin(file(5), b"a"), asked)
    it.invalidate_everything()
    assert it.lookup_stale(1, b"a") is None
    assert it.getattr_stale(1) is None
    assert it.origin(5) is None
    assert it.page_stale(1, b"", 10) is None
    assert not it.put_found(1, b"a", Found(file(5), 60.0), asked)


def test_a_cache_is_bounded() -> None:
    it = cache(limit=100, page_bytes=10_000)
    for ino in range(2, 2000):
        page = listing(*((b"n%d" % i, file(ino * 100 + i)) for i in range(10)))
        it.put_listing(ino, b"", 10, page, it.asked(0.0))
    sizes = it.sizes()
    assert sizes["names"] <= 100
    assert sizes["listing_bytes"] <= 10_000
    assert it.page(1999, b"", 10, 0.0) is not None, "the last page is there"


def test_bytes_of_pages_are_counted_right() -> None:
    pages = ListingPages(1 << 20)
    for _ in range(3):
        pages.put(1, b"", 10, listing((b"a", file(5))), 1.0)
        pages.put(1, b"a", 10, listing((b"b", file(6))), 1.0)
        pages.put(2, b"", 10, listing(), 1.0)
    assert pages.size_bytes > 0
    pages.drop(1)
    pages.drop(2)
    assert pages.size_bytes == 0


PARENTS, NAMES = st.integers(1, 3), st.sampled_from([b"a", b"b", b"c"])
STEPS = st.one_of(
    st.tuples(st.just("change"), PARENTS, NAMES, st.booleans()),
    st.tuples(st.just("ask"), PARENTS, NAMES, st.booleans()),
    st.tuples(st.just("answer"), st.just(0), st.just(b""), st.booleans()),
    st.tuples(st.just("list"), PARENTS, st.just(b""), st.booleans()),
    st.tuples(st.just("hear"), st.just(0), st.just(b""), st.booleans()),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_no_answer_is_older_than_a_change_that_was_heard(
    steps: list[tuple[str, int, bytes, bool]],
) -> None:
    """Against a model: a tree, answers that are under way for any time, and changes that are heard
    in order. What the cache says of a name was true at the last heard change of it, or later."""
    it = cache(limit=8)
    tree: dict[tuple[int, bytes], Inode] = {}
    truths: dict[tuple[int, bytes], list[Inode | None]] = {}  # since the last change heard
    unheard: list[tuple[int, bytes]] = []
    under_way = []
    next_ino = 10
    for what, parent, name, flag in steps:
        at = (parent, name)
        if what == "change":
            next_ino += 1
            tree.pop(at, None)
            if flag:
                tree[at] = file(next_ino)
            truths.setdefault(at, [None]).append(tree.get(at))
            unheard.append(at)
        elif what == "ask":
            under_way.append((it.asked(0.0), {at: tree.get(at)}, None))
        elif what == "list":
            below = {p: i for p, i in tree.items() if p[0] == parent}
            under_way.append((it.asked(0.0), below, parent))
        elif what == "answer" and under_way:
            asked, answers, directory_ino = under_way.pop(0 if flag else -1)
            if directory_ino is None:
                ((key, inode),) = answers.items()
                it.put_found(*key, Found(inode, 60.0), asked)
            else:
                named = [(n, i) for (_, n), i in answers.items()]
                it.put_listing(directory_ino, b"", 9, listing(*named), asked)
        elif what == "hear" and unheard:
            heard = unheard.pop(0)
            it.invalidate(*heard)
            if heard not in unheard:
                truths[heard] = [tree.get(heard)]
            elif len(truths[heard]) > 1:
                truths[heard].pop(0)
        for key in [(p, n) for p in (1, 2, 3) for n in (b"a", b"b", b"c")]:
            found = it.lookup(*key, 0.0)
            assert found is None or found.inode in truths.get(key, [None])
            page = it.page(key[0], b"", 9, 0.0)
            if page is not None:
                shown = {e.name: bytes(e.inode) for e in page.entries}
                allowed = [i and encode(i) for i in truths.get(key, [None])]
                assert shown.get(key[1]) in allowed
