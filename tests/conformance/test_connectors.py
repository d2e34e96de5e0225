"""The suite of connectors on every store, small files that are asked for many at once, and ranges
of large ones that a process of its own downloads."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator

import pytest

from cachefs.core.errors import BY_CODE, NotFound, Stale
from cachefs.core.model import PAGE_BYTES, Fingerprint, Kind
from connectors.base import Connector
from connectors.conformance import reading
from connectors.conformance.origin import MakeOrigin, Origin, entries, keys_of
from connectors.conformance.reading import *  # noqa: F403
from connectors.fetch.request import NewConnections, RangeRequest
from tests.conformance.origins import OriginFactory
from tests.services.download_thread import DownloadThread
from tests.services.many_thread import ManyThread

KINDS = (
    "file", "hdfs", "s3-versitygw", "s3-versitygw-tls", "s3-moto", "gcs", "azure",
    "fsspec-local", "fsspec-memory", "fsspec-sftp", "arrow-local", "arrow-s3",
    "memory", "memory-unordered", "memory-decorated",
)  # fmt: skip
WAIT_S = 20.0
SMALL = {b"small/%d" % size: random.Random(size).randbytes(size) for size in (1, 4097, 1 << 20)}
ODD = ["ümlaut/%41+ &=?#;~'\"*", "tab\tand\x01more\x7f", "\U0001f600", "a" * 255]
SMALL |= {f"odd/{name}".encode(): name.encode() for name in ODD}
LARGE = random.Random("large").randbytes(3 * PAGE_BYTES + 4097)
RANGES = (
    (0, len(LARGE)), (0, 1), (PAGE_BYTES, PAGE_BYTES), (PAGE_BYTES, 2 * PAGE_BYTES),
    (12345, 2 * PAGE_BYTES), (PAGE_BYTES - 1, 2 * PAGE_BYTES + 2), (len(LARGE) - 1, 1),
)  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def make_origin(kind: str, new_origin: OriginFactory) -> MakeOrigin:
    return lambda: new_origin(kind)


@pytest.fixture
def many() -> Iterator[ManyThread]:
    made = ManyThread()
    yield made
    made.close(WAIT_S)


@pytest.fixture(scope="module")
def downloads() -> Iterator[DownloadThread]:
    made = DownloadThread()
    yield made
    made.close(WAIT_S)
    assert made.error is None


def is_asked(kind: str) -> bool:
    """Returns whether the store takes requests for whole small files."""
    return kind.startswith(("s3", "gcs", "azure"))


def asks(
    kind: str, connector: Connector, versions: dict[bytes, Fingerprint]
) -> dict[bytes, RangeRequest]:
    """Only object stores are asked so, once a thread has read a whole file of them."""
    found = {
        path: connector.ask(path, 0, version.size, version) for path, version in versions.items()
    }
    assert all((ask is not None) == is_asked(kind) for ask in found.values())
    return {path: ask for path, ask in found.items() if ask is not None}


def brought(many: ManyThread, asked: list[RangeRequest]) -> list[bytes | None]:
    """All at once, in the order of `asked`."""
    taken: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()

    def start(number: int, ask: RangeRequest) -> None:
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


def test_more_than_a_page(kind: str, origin: Origin) -> None:
    """fake-gcs-server puts every directory on each page, so that a directory is left out there."""
    if kind != "gcs":
        return reading.test_more_than_a_page(origin)
    names = [b"n%05d" % number for number in range(reading.MANY)]
    origin.put_all({b"many/" + name: b"" for name in names})
    pages = list(origin.connector.list_dir(b"many"))
    assert len(pages) > 1
    assert keys_of(entries(pages)) == names


def test_small_files_read_many_at_once(kind: str, origin: Origin, many: ManyThread) -> None:
    origin.put_all(small_files(kind))
    versions = {path: origin.connector.stat(path).fingerprint for path in small_files(kind)}
    for path, version in versions.items():
        assert bytes(origin.connector.read_all(path, version)) == SMALL[path]
    asked = asks(kind, origin.connector, versions)
    paths = [*asked] * 5
    assert brought(many, [asked[path] for path in paths]) == [SMALL[path] for path in paths]


def test_of_another_version_nothing_is_brought(kind: str, origin: Origin, many: ManyThread) -> None:
    changes = {b"f": b"NEW", b"g": b"longer than before", b"h": b"s", b"i": b""}
    origin.put_all(dict.fromkeys((*changes, b"gone", b"same"), b"old"))
    source = origin.connector
    versions = {path: source.stat(path).fingerprint for path in (*changes, b"gone", b"same")}
    assert bytes(source.read_all(b"same", versions[b"same"])) == b"old"
    asked = asks(kind, source, versions)
    origin.put_all(changes)
    origin.delete(b"gone")
    expected = [None] * (len(versions) - 1) + [b"old"]
    assert brought(many, [*asked.values()]) == expected[: len(asked)]
    del versions[b"same"]
    for path, version in versions.items():
        with pytest.raises(NotFound if path == b"gone" else Stale):
            source.read_all(path, version)


def test_what_cannot_be_asked_for_is_left(kind: str, origin: Origin) -> None:
    """An empty file, and names that no file has."""
    origin.put_all({b"empty": b"", b"f": b"123"})
    source = origin.connector
    versions = {path: source.stat(path).fingerprint for path in (b"empty", b"f")}
    for path, version in versions.items():
        assert len(source.read_all(path, version)) == version.size
    assert (source.ask(b"f", 0, versions[b"f"].size, versions[b"f"]) is not None) == is_asked(kind)
    assert source.ask(b"empty", 0, versions[b"empty"].size, versions[b"empty"]) is None
    for path in (b"..", b"a//x", b"nul\0", b"\xff\xfe", b""):
        assert source.ask(path, 0, 3, Fingerprint(Kind.FILE, 3, 0, "e")) is None


def asks_of_ranges(kind: str, origin: Origin) -> list[RangeRequest]:
    """Returns the requests for `RANGES` of the large file; none where the store takes none."""
    source, version = origin.connector, origin.connector.stat(b"large").fingerprint
    small = source.stat(b"small").fingerprint
    assert bytes(source.read_all(b"small", small)) == b"123"
    found = [source.ask(b"large", offset, size, version) for offset, size in RANGES]
    assert all((ask is not None) == is_asked(kind) for ask in found)
    return [ask for ask in found if ask is not None]


def downloaded(
    downloads: DownloadThread, asked: list[RangeRequest]
) -> list[tuple[bytes | None, int, str]]:
    """Returns body, bytes received and code of all, which are downloaded at once, in order."""
    ended: queue.SimpleQueue[tuple[int, tuple[bytes | None, int, str]]] = queue.SimpleQueue()

    def start(number: int, ask: RangeRequest) -> None:
        def end(body: bytes | None, size: int, code: str, made: NewConnections) -> None:
            ask.ended(size, code)
            ended.put((number, (body, size, code)))

        assert downloads.start(ask.get, end)

    for number, ask in enumerate(asked):
        start(number, ask)
    found = [ended.get(timeout=WAIT_S) for _ in asked]
    assert ended.empty()
    return [outcome for _, outcome in sorted(found, key=lambda one: one[0])]


def test_ranges_are_downloaded(kind: str, origin: Origin, downloads: DownloadThread) -> None:
    """As `read` reads them."""
    origin.put_all({b"large": LARGE, b"small": b"123"})
    version = origin.connector.stat(b"large").fingerprint
    bodies = [LARGE[offset : offset + size] for offset, size in RANGES]
    for (offset, size), body in zip(RANGES, bodies, strict=True):
        read = origin.connector.read(b"large", offset, size, version)
        assert b"".join(bytes(chunk) for chunk in read) == body
    found = downloaded(downloads, asks_of_ranges(kind, origin))
    assert found == [(body, len(body), "") for body in bodies[: len(found)]]


@pytest.mark.parametrize("change", ["same-size", "longer", "shorter", "gone"])
def test_of_another_version_nothing_is_downloaded(
    kind: str, origin: Origin, downloads: DownloadThread, change: str
) -> None:
    origin.put_all({b"large": LARGE, b"small": b"123"})
    asked = asks_of_ranges(kind, origin)
    changes = {"same-size": LARGE[::-1], "longer": LARGE + b"x", "shorter": LARGE[:PAGE_BYTES]}
    if change == "gone":
        origin.delete(b"large")
    else:
        origin.put(b"large", changes[change])
    for body, received_bytes, code in downloaded(downloads, asked):
        assert (body, received_bytes) == (None, 0)
        assert code in BY_CODE
