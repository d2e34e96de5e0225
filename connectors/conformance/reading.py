"""What every connector must do. A test module imports all names of this one, and has a fixture
`make_origin` of module scope (`MakeOrigin`)."""

from __future__ import annotations

import concurrent.futures
import itertools
import random
import time
from collections.abc import Callable

import pytest

from cachefs.core.errors import NotFound, Stale
from cachefs.core.model import Kind
from connectors.base import Connector
from connectors.capabilities import Identity
from connectors.conformance.origin import MakeOrigin, Origin, content, entries, keys_of

MANY = 1050  # more than a page of any store
CHANGE_S = 3.0  # longer than the precision of any time of a directory

# In the order of S3's keys; `a/` stands between `a-b` and `a0`.
ORDERED = [b"a-b", b"a.txt", b"a/", b"a0", b"b/", b"sp ace+%20&x", b"z", "ümlaut".encode()]
TREE = [b"a-b", b"a.txt", b"a/x/1", b"a/x/2", b"a/x-y", b"a0", b"b/" + b"f" * 200, *ORDERED[-3:]]
TREE.sort()
# Of one to four bytes a letter, composed and not, from right to left, and in an order that differs
# between UTF-8 and UTF-16: U+FF5E stands before U+1F600 in the one, and behind it in the other.
SCRIPTS = [
    "Größe", "Gro\u0308ße", "имя", "όνομα", "שם", "اسم", "नाम", "ชื่อ", "名前", "이름", "名字",
    "\uff5e", "\U0001f600", "\U00020bb7", "a'b\"c", "100%25", "x=1;y~!@#$^()[]{}",
]  # fmt: skip
BIG = random.Random(1).randbytes((5 << 20) + 12_345)


@pytest.fixture(scope="module")
def tree(make_origin: MakeOrigin) -> Connector:
    """A connector over TREE, each file holding its own path."""
    origin = make_origin()
    origin.put_all({path: path for path in TREE})
    return origin.connector


@pytest.fixture
def origin(make_origin: MakeOrigin) -> Origin:
    return make_origin()


def test_check_accepts_a_root_that_has_something(tree: Connector) -> None:
    tree.check()


def test_listing_shows_each_child_once(tree: Connector) -> None:
    found = keys_of(entries(tree.list_dir(b"")))
    assert sorted(found) == ORDERED
    assert found == ORDERED or not tree.capabilities.ordered_listings


def test_listing_of_a_directory_below(tree: Connector) -> None:
    assert sorted(keys_of(entries(tree.list_dir(b"a")))) == [b"x-y", b"x/"]
    assert sorted(keys_of(entries(tree.list_dir(b"a/x")))) == [b"1", b"2"]


def test_listing_of_a_missing_directory(tree: Connector) -> None:
    if tree.capabilities.directories:
        with pytest.raises(NotFound):
            entries(tree.list_dir(b"nothing"))
    else:
        assert entries(tree.list_dir(b"nothing")) == []


def test_stat_and_listings_agree(tree: Connector) -> None:
    for entry in entries(tree.list_dir(b"")):
        assert tree.stat(entry.name) == entry
    for entry in entries(tree.list_dir(b"a/x")):
        assert tree.stat(b"a/x/" + entry.name) == entry


def test_stat_tells_file_from_directory(tree: Connector) -> None:
    """[C-times] And the time of a file has the declared precision."""
    root, directory, file = tree.stat(b""), tree.stat(b"a/x"), tree.stat(b"a/x/1")
    assert (root.name, root.fingerprint.kind) == (b"", Kind.DIRECTORY)
    assert (directory.name, directory.fingerprint.kind) == (b"x", Kind.DIRECTORY)
    assert (file.name, file.fingerprint.kind, file.fingerprint.size) == (b"1", Kind.FILE, 5)
    if tree.capabilities.identity is Identity.CONTENT:
        assert file.fingerprint.etag
    assert file.fingerprint.mtime_ns % tree.capabilities.mtime_precision_ns == 0
    assert '"' not in file.fingerprint.etag


def test_a_directory_without_names(origin: Origin) -> None:
    """[C-directories] [C-no-directories]"""
    origin.put(b"d/f", b"1")
    origin.put(b"kept", b"1")
    origin.delete(b"d/f")
    found = {*keys_of(entries(origin.connector.list_dir(b"")))}
    assert found == ({b"d/", b"kept"} if origin.connector.capabilities.directories else {b"kept"})


def test_attributes_are_those_of_the_store_or_unknown(tree: Connector) -> None:
    """[C-posix] [C-no-posix] Of an unknown one the mount decides."""
    for path in (b"z", b"a"):
        entry = tree.stat(path)
        assert (entry.mode >= 0) is tree.capabilities.posix_attributes
        if not tree.capabilities.posix_attributes:
            assert (entry.uid, entry.gid) == (-1, -1)


def test_the_time_of_a_directory_changes_with_its_names(origin: Origin) -> None:
    """A store may give one time to changes that are close together."""
    tree = origin.connector
    origin.put(b"d/kept", b"1")
    added = itertools.count()

    def changed_ns() -> int:
        return tree.stat(b"d").names_changed_ns

    def changes(change: Callable[[], None]) -> bool:
        before_ns, until_s = changed_ns(), time.monotonic() + CHANGE_S
        while changed_ns() == before_ns and time.monotonic() < until_s:
            change()
        return changed_ns() != before_ns

    def add_and_remove() -> None:
        origin.put(b"d/new", b"1")
        origin.delete(b"d/new")

    if not tree.capabilities.directory_times:
        assert changed_ns() == 0
        return
    assert changes(lambda: origin.put(b"d/%d" % next(added), b"1")), "names were added"
    assert changes(add_and_remove)


@pytest.mark.parametrize(
    "path", [b"nothing", b"a/nothing", b"z/below-a-file", b"a/x/1/2", b"not-below/x", b"a-"]
)
def test_stat_of_what_is_not_there(tree: Connector, path: bytes) -> None:
    with pytest.raises(NotFound):
        tree.stat(path)


@pytest.mark.parametrize(
    "path", [b"..", b".", b"a//x", b"a/../z", b"a/", b"/a", b"nul\0", b"f" * 256, b"\xff\xfe"]
)
def test_names_that_cannot_be(tree: Connector, path: bytes) -> None:
    with pytest.raises(NotFound):
        tree.stat(path)


def test_every_file_reads_back(tree: Connector) -> None:
    for path in TREE:
        assert content(tree, path) == path


def test_names_in_every_script(origin: Origin) -> None:
    """Of files and of directories, as their bytes are: no store normalises them."""
    names = [name.encode() for name in SCRIPTS]
    origin.put_all({name: name for name in names} | {b"d-" + n + b"/" + n: n for n in names})
    connector = origin.connector
    found = keys_of(entries(connector.list_dir(b"")))
    wanted = sorted([*names, *(b"d-" + name + b"/" for name in names)])
    assert sorted(found) == wanted
    assert found == wanted or not connector.capabilities.ordered_listings
    for name in names:
        assert content(connector, name) == name
        assert [one.name for one in entries(connector.list_dir(b"d-" + name))] == [name]
        assert content(connector, b"d-" + name + b"/" + name) == name


def test_ranges_of_a_big_file(origin: Origin) -> None:
    origin.put(b"big", BIG)
    for offset, size in [
        (0, len(BIG)),
        (0, 1),
        (len(BIG) - 1, 1),
        (1 << 20, 1 << 20),
        (7, 3 << 20),
    ]:
        assert content(origin.connector, b"big", offset, size) == BIG[offset : offset + size]


def test_empty_file(origin: Origin) -> None:
    origin.put(b"empty", b"")
    assert origin.connector.stat(b"empty").fingerprint.size == 0
    assert content(origin.connector, b"empty") == b""


def test_reading_past_the_version_is_refused(origin: Origin) -> None:
    origin.put(b"f", b"123")
    version = origin.connector.stat(b"f").fingerprint
    with pytest.raises(ValueError, match="of a file of 3"):
        origin.connector.read(b"f", 1, 3, version)


@pytest.mark.parametrize("data", [b"NEW", b"longer than before", b"s", b""])
def test_another_version_is_never_read_for_the_old(origin: Origin, data: bytes) -> None:
    """[C-refuses] [C-compares] Of the same length, too."""
    origin.put(b"f", b"old")
    version = origin.connector.stat(b"f").fingerprint
    origin.put(b"f", data)
    for offset, size in [(0, 3), (0, 1), (2, 1)]:
        with pytest.raises(Stale):
            b"".join(origin.connector.read(b"f", offset, size, version))
    assert origin.connector.stat(b"f").fingerprint != version


def test_a_change_of_an_empty_file_is_seen(origin: Origin) -> None:
    origin.put(b"f", b"")
    version = origin.connector.stat(b"f").fingerprint
    origin.put(b"f", b"now more")
    with pytest.raises(Stale):
        b"".join(origin.connector.read(b"f", 0, 0, version))


def test_reading_what_is_gone(origin: Origin) -> None:
    origin.put(b"d/f", b"123")
    origin.put(b"d/g", b"123")
    version = origin.connector.stat(b"d/f").fingerprint
    origin.delete(b"d/f")
    with pytest.raises(NotFound):
        b"".join(origin.connector.read(b"d/f", 0, 3, version))
    with pytest.raises(NotFound):
        origin.connector.stat(b"d/f")
    assert keys_of(entries(origin.connector.list_dir(b"d"))) == [b"g"]


def test_a_body_may_be_closed_early(origin: Origin) -> None:
    origin.put(b"big", BIG)
    version = origin.connector.stat(b"big").fingerprint
    body = origin.connector.read(b"big", 0, len(BIG), version)
    first = bytes(next(iter(body)))
    assert BIG.startswith(first)
    body.close()
    body.close()
    assert content(origin.connector, b"big", 0, 10) == BIG[:10]


def test_sixteen_threads_at_once(origin: Origin) -> None:
    origin.put(b"big", BIG)
    origin.put(b"d/small", b"small")
    version = origin.connector.stat(b"big").fingerprint
    seed = 5
    ranges = random.Random(seed)

    def work(number: int) -> bool:
        offset = ranges.randrange(len(BIG) - 100_000)
        body = origin.connector.read(b"big", offset, 100_000, version)
        same = b"".join(bytes(c) for c in body) == BIG[offset : offset + 100_000]
        listed = keys_of(entries(origin.connector.list_dir(b"")))
        return same and sorted(listed) == [b"big", b"d/"] and bool(origin.connector.stat(b"d"))

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(48))), f"seed {seed}"


def test_more_than_a_page(origin: Origin) -> None:
    names = [b"n%05d" % number for number in range(MANY)]
    origin.put_all({b"many/" + name: b"" for name in names})
    origin.put(b"many/sub/f", b"")
    every = sorted([*names, b"sub/"])
    pages = list(origin.connector.list_dir(b"many"))
    assert len(pages) > 1
    assert sorted(keys_of(entries(pages))) == every
    if origin.connector.capabilities.ordered_listings:
        assert keys_of(entries(pages)) == every


def test_closing_twice(origin: Origin) -> None:
    origin.connector.close()
    origin.connector.close()
