"""What every connector must do, whatever is under it."""

from __future__ import annotations

import concurrent.futures
import queue
import random
from collections.abc import Iterable, Iterator

import pytest

from cachefs.core.errors import NotFound, Stale
from cachefs.core.model import Fingerprint, Kind
from connectors.base import Connector, Entry, Page, order_key
from connectors.capabilities import Identity
from connectors.conformance.origin import Origin
from connectors.fetch.request import WholeFileRequest
from tests.conformance.origins import OriginFactory, put_all
from tests.services.many_thread import ManyThread

KINDS = (
    "file", "hdfs", "s3-versitygw", "s3-versitygw-tls", "s3-moto", "gcs", "azure",
    "fsspec-local", "fsspec-memory", "fsspec-sftp", "arrow-local", "arrow-s3",
    "memory", "memory-unordered", "memory-decorated",
)  # fmt: skip
MANY = 1050  # more than a page of any store

# In the order of S3's keys; `a/` stands between `a-b` and `a0`.
ORDERED = [b"a-b", b"a.txt", b"a/", b"a0", b"b/", b"sp ace+%20&x", b"z", "ümlaut".encode()]
TREE = [b"a-b", b"a.txt", b"a/x/1", b"a/x/2", b"a/x-y", b"a0", b"b/" + b"f" * 200, *ORDERED[-3:]]
TREE.sort()
SMALL = {b"small/%d" % size: random.Random(size).randbytes(size) for size in (1, 4097, 1 << 20)}
ODD = ["ümlaut/%41+ &=?#;~'\"*", "tab\tand\x01more\x7f", "\U0001f600", "a" * 255]
SMALL |= {f"odd/{name}".encode(): name.encode() for name in ODD}
WAIT_S = 20.0
BIG = random.Random(1).randbytes((5 << 20) + 12_345)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tree(kind: str, new_origin: OriginFactory) -> Connector:
    """A connector over TREE, each file holding its own path, and an empty and a big file."""
    origin = new_origin(kind)
    put_all(origin, {path: path for path in TREE})
    return origin.connector


@pytest.fixture
def origin(kind: str, new_origin: OriginFactory) -> Origin:
    return new_origin(kind)


def entries(pages: Iterable[Page]) -> list[Entry]:
    return [entry for page in pages for entry in page.entries]


def keys_of(found: list[Entry]) -> list[bytes]:
    return [order_key(e.name, e.fingerprint.kind is Kind.DIRECTORY) for e in found]


def content(connector: Connector, path: bytes, offset: int = 0, size: int | None = None) -> bytes:
    version = connector.stat(path).fingerprint
    size = version.size - offset if size is None else size
    body = connector.read(path, offset, size, version)
    try:
        return b"".join(bytes(chunk) for chunk in body)
    finally:
        body.close()


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
    root, directory, file = tree.stat(b""), tree.stat(b"a/x"), tree.stat(b"a/x/1")
    assert (root.name, root.fingerprint.kind) == (b"", Kind.DIRECTORY)
    assert (directory.name, directory.fingerprint.kind) == (b"x", Kind.DIRECTORY)
    assert (file.name, file.fingerprint.kind, file.fingerprint.size) == (b"1", Kind.FILE, 5)
    if tree.capabilities.identity is Identity.CONTENT:
        assert file.fingerprint.etag
    assert file.fingerprint.mtime_ns % tree.capabilities.mtime_precision_ns == 0
    assert '"' not in file.fingerprint.etag


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


def test_more_than_a_page(kind: str, origin: Origin) -> None:
    names = [b"n%05d" % number for number in range(MANY)]
    put_all(origin, {b"many/" + name: b"" for name in names})
    every = names
    if kind != "gcs":  # fake-gcs-server puts every directory on each page
        origin.put(b"many/sub/f", b"")
        every = sorted([*names, b"sub/"])
    pages = list(origin.connector.list_dir(b"many"))
    assert len(pages) > 1
    assert sorted(keys_of(entries(pages))) == every
    if origin.connector.capabilities.ordered_listings:
        assert keys_of(entries(pages)) == every


@pytest.fixture
def many() -> Iterator[ManyThread]:
    made = ManyThread()
    yield made
    made.close(WAIT_S)


def is_asked(kind: str) -> bool:
    """Whether the store takes requests for whole small files."""
    return kind.startswith(("s3", "gcs", "azure"))


def asks(
    kind: str, connector: Connector, versions: dict[bytes, Fingerprint]
) -> dict[bytes, WholeFileRequest]:
    """Only object stores are asked so, once a thread has read a whole file of them."""
    found = {path: connector.ask(path, version) for path, version in versions.items()}
    assert all((ask is not None) == is_asked(kind) for ask in found.values())
    return {path: ask for path, ask in found.items() if ask is not None}


def brought(many: ManyThread, asked: list[WholeFileRequest]) -> list[bytes | None]:
    """All at once, in the order of `asked`."""
    taken: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()

    def start(number: int, ask: WholeFileRequest) -> None:
        def take(body: memoryview | None, *_: object) -> None:
            taken.put((number, None if body is None else bytes(body)))

        assert many.start(ask.get, take)

    for number, ask in enumerate(asked):
        start(number, ask)
    found = [taken.get(timeout=WAIT_S) for _ in asked]
    assert taken.empty()
    return [body for _, body in sorted(found, key=lambda one: one[0])]


def small_files(kind: str) -> dict[bytes, bytes]:
    """Azure has no names with control characters."""
    return {path: data for path, data in SMALL.items() if kind != "azure" or b"\t" not in path}


def test_small_files_read_many_at_once(kind: str, origin: Origin, many: ManyThread) -> None:
    put_all(origin, small_files(kind))
    versions = {path: origin.connector.stat(path).fingerprint for path in small_files(kind)}
    for path, version in versions.items():
        assert bytes(origin.connector.read_all(path, version)) == SMALL[path]
    asked = asks(kind, origin.connector, versions)
    paths = [*asked] * 5
    assert brought(many, [asked[path] for path in paths]) == [SMALL[path] for path in paths]


def test_of_another_version_nothing_is_brought(kind: str, origin: Origin, many: ManyThread) -> None:
    changes = {b"f": b"NEW", b"g": b"longer than before", b"h": b"s", b"i": b""}
    put_all(origin, dict.fromkeys((*changes, b"gone", b"same"), b"old"))
    source = origin.connector
    versions = {path: source.stat(path).fingerprint for path in (*changes, b"gone", b"same")}
    assert bytes(source.read_all(b"same", versions[b"same"])) == b"old"
    asked = asks(kind, source, versions)
    put_all(origin, changes)
    origin.delete(b"gone")
    expected = [None] * (len(versions) - 1) + [b"old"]
    assert brought(many, [*asked.values()]) == expected[: len(asked)]
    del versions[b"same"]
    for path, version in versions.items():
        with pytest.raises(NotFound if path == b"gone" else Stale):
            source.read_all(path, version)


def test_what_cannot_be_asked_for_is_left(kind: str, origin: Origin) -> None:
    """An empty file, and names that no file has."""
    put_all(origin, {b"empty": b"", b"f": b"123"})
    source = origin.connector
    versions = {path: source.stat(path).fingerprint for path in (b"empty", b"f")}
    for path, version in versions.items():
        assert len(source.read_all(path, version)) == version.size
    assert (source.ask(b"f", versions[b"f"]) is not None) == is_asked(kind)
    assert source.ask(b"empty", versions[b"empty"]) is None
    for path in (b"..", b"a//x", b"nul\0", b"\xff\xfe", b""):
        assert source.ask(path, Fingerprint(Kind.FILE, 3, 0, "e")) is None


def test_closing_twice(origin: Origin) -> None:
    origin.connector.close()
    origin.connector.close()
