"""What every connector that writes must do. A test module imports all names of this one, and has a
fixture `make_origin` of module scope (`MakeOrigin`)."""

from __future__ import annotations

import concurrent.futures
import random

import pytest

from cachefs.core.errors import AlreadyExists, CacheFSError, NotEmpty, NotFound, Stale, Unsupported
from cachefs.core.model import Fingerprint, Kind
from connectors.base import Connector
from connectors.capabilities import Writing
from connectors.conformance.origin import MakeOrigin, Origin, content, entries, keys_of
from connectors.writing import ABSENT, ANY, Expectation, Writer, writer_of

DIRECTORY = Fingerprint(Kind.DIRECTORY)
BIG = random.Random(2).randbytes((3 << 20) + 17)
WRITERS = 8


@pytest.fixture
def origin(make_origin: MakeOrigin) -> Origin:
    return make_origin()


@pytest.fixture
def source(origin: Origin) -> Connector:
    return origin.connector


@pytest.fixture
def writer(source: Connector) -> Writer:
    return writer_of(source)


def can(source: Connector) -> Writing:
    assert source.capabilities.writing is not None
    return source.capabilities.writing


def put(writer: Writer, path: bytes, data: bytes, expect: Expectation = ANY) -> Fingerprint:
    return writer.put(path, memoryview(data), expect)


def outcomes(
    writer: Writer, data: list[bytes], expect: Expectation
) -> tuple[list[int], list[CacheFSError]]:
    """Puts every data to one file, all at once; returns the numbers of those that succeeded, and
    the errors."""

    def run(one: bytes) -> CacheFSError | None:
        try:
            put(writer, b"f", one, expect)
        except CacheFSError as error:
            return error
        return None

    with concurrent.futures.ThreadPoolExecutor(len(data)) as pool:
        found = list(pool.map(run, data))
    return [n for n, error in enumerate(found) if error is None], [e for e in found if e]


@pytest.mark.parametrize("data", [b"", b"small", BIG], ids=["empty", "small", "big"])
def test_what_is_put_is_there(source: Connector, writer: Writer, data: bytes) -> None:
    version = put(writer, b"f", data)
    assert version == source.stat(b"f").fingerprint
    assert content(source, b"f") == data
    again = put(writer, b"f", data[:-1] + b"?")
    assert again != version
    assert content(source, b"f") == data[:-1] + b"?"
    assert keys_of(entries(source.list_dir(b""))) == [b"f"]


def test_the_directories_above_are_made(source: Connector, writer: Writer) -> None:
    put(writer, b"a/b/f", b"1", ABSENT)
    put(writer, b"a/g", b"2")
    assert sorted(keys_of(entries(source.list_dir(b"a")))) == [b"b/", b"g"]
    assert content(source, b"a/b/f") == b"1"


def test_a_new_file_replaces_none(source: Connector, writer: Writer) -> None:
    put(writer, b"f", b"first", ABSENT)
    with pytest.raises(AlreadyExists):
        put(writer, b"f", b"second", ABSENT)
    assert content(source, b"f") == b"first"


def test_one_version_is_replaced(origin: Origin, source: Connector, writer: Writer) -> None:
    first = put(writer, b"f", b"first")
    second = put(writer, b"f", b"second", first)
    assert content(source, b"f") == b"second"
    with pytest.raises(Stale):
        put(writer, b"f", b"third", first)
    origin.put(b"f", b"of another")
    with pytest.raises(Stale):
        put(writer, b"f", b"third", second)
    assert content(source, b"f") == b"of another"
    with pytest.raises(NotFound):
        put(writer, b"g", b"third", second)


@pytest.mark.parametrize("path", [b"", b"..", b"a//x", b"a/../z", b"a/", b"/a", b"f" * 256])
def test_names_that_no_file_can_have(source: Connector, writer: Writer, path: bytes) -> None:
    with pytest.raises(NotFound):
        put(writer, path, b"x")
    assert entries(source.list_dir(b"")) == []


def test_of_many_creators_one_succeeds(source: Connector, writer: Writer) -> None:
    if can(source).create_only:
        data = [b"%d" % number for number in range(WRITERS)]
        winners, errors = outcomes(writer, data, ABSENT)
        assert [type(error) for error in errors] == [AlreadyExists] * (WRITERS - 1)
        assert [content(source, b"f")] == [data[number] for number in winners]


def test_of_many_replacements_one_succeeds(source: Connector, writer: Writer) -> None:
    if can(source).replace_if:
        before = put(writer, b"f", b"before")
        data = [b"%d" % number for number in range(WRITERS)]
        winners, errors = outcomes(writer, data, before)
        assert [type(error) for error in errors] == [Stale] * (WRITERS - 1)
        assert [content(source, b"f")] == [data[number] for number in winners]


def parts_of(source: Connector) -> tuple[int, list[bytes]]:
    """The size of the suite's parts, the smallest of the store, and three parts."""
    limits = can(source).multipart
    assert limits is not None
    size = max(limits.min_part_bytes, 1000)
    data = random.Random(3).randbytes(2 * size + 100)
    return size, [data[:size], data[size : 2 * size], data[2 * size :]]


def test_an_upload_in_parts(origin: Origin, source: Connector, writer: Writer) -> None:
    """Parts in any order, one of them twice, by two connectors; the last one finishes."""
    if can(source).multipart is None:
        return
    size, parts = parts_of(source)
    token = writer.begin(b"d/f", size)
    assert isinstance(token, bytes)
    receipts = {2: writer.put_part(token, 2, memoryview(parts[2]))}
    writer.put_part(token, 0, memoryview(parts[1]))
    other = origin.reopen()
    try:
        second = writer_of(other)
        receipts[1] = second.put_part(token, 1, memoryview(parts[1]))
        receipts[0] = second.put_part(token, 0, memoryview(parts[0]))
        with pytest.raises(NotFound):
            source.stat(b"d/f")
        assert [e for e in entries(source.list_dir(b"")) if e.fingerprint.kind is Kind.FILE] == []
        version = second.finish(token, [receipts[number] for number in range(3)], ABSENT)
        again = second.finish(token, [receipts[number] for number in range(3)], ABSENT)
    finally:
        other.close()
    assert version == again == source.stat(b"d/f").fingerprint
    assert content(source, b"d/f") == b"".join(parts)
    assert keys_of(entries(source.list_dir(b"d"))) == [b"f"]


def test_an_upload_expects_what_a_put_expects(source: Connector, writer: Writer) -> None:
    if can(source).multipart is None:
        return
    size, parts = parts_of(source)
    old = put(writer, b"f", b"old")
    now = put(writer, b"f", b"now")
    token = writer.begin(b"f", size)
    receipts = [writer.put_part(token, 0, memoryview(parts[2]))]
    with pytest.raises(AlreadyExists):
        writer.finish(token, receipts, ABSENT)
    with pytest.raises(Stale):
        writer.finish(token, receipts, old)
    assert content(source, b"f") == b"now"
    writer.finish(token, receipts, now)
    assert content(source, b"f") == parts[2]


def test_an_upload_that_is_aborted_leaves_nothing(source: Connector, writer: Writer) -> None:
    if can(source).multipart is None:
        return
    size, parts = parts_of(source)
    token = writer.begin(b"f", size)
    receipt = writer.put_part(token, 0, memoryview(parts[2]))
    writer.abort(token)
    writer.abort(token)
    with pytest.raises(NotFound):
        writer.finish(token, [receipt], ANY)
    assert entries(source.list_dir(b"")) == []


def test_copies(origin: Origin, source: Connector, writer: Writer) -> None:
    if not can(source).copy:
        with pytest.raises(Unsupported):
            writer.copy(b"f", Fingerprint(Kind.FILE), b"g", ANY)
        return
    old = put(writer, b"a f+%", b"old")
    version = put(writer, b"a f+%", b"new")
    copied = writer.copy(b"a f+%", version, b"d/g", ABSENT)
    assert copied == source.stat(b"d/g").fingerprint
    assert content(source, b"d/g") == b"new"
    with pytest.raises(AlreadyExists):
        writer.copy(b"a f+%", version, b"d/g", ABSENT)
    writer.copy(b"a f+%", version, b"d/g", ANY)
    with pytest.raises(Stale):
        writer.copy(b"a f+%", old, b"h", ANY)
    origin.delete(b"a f+%")
    with pytest.raises(NotFound):
        writer.copy(b"a f+%", version, b"h", ANY)
    assert sorted(keys_of(entries(source.list_dir(b"")))) == [b"d/"]


def test_renames(source: Connector, writer: Writer) -> None:
    put(writer, b"d/f", b"1")
    put(writer, b"g", b"2")
    if not can(source).rename:
        with pytest.raises(Unsupported):
            writer.rename(b"g", b"h", ANY)
        return
    with pytest.raises(AlreadyExists):
        writer.rename(b"g", b"d/f", ABSENT)
    writer.rename(b"g", b"d/g", ABSENT)
    writer.rename(b"d", b"e/d", ABSENT)
    assert keys_of(entries(source.list_dir(b""))) == [b"e/"]
    assert content(source, b"e/d/g") == b"2"
    writer.rename(b"e/d/g", b"e/d/f", ANY)
    assert content(source, b"e/d/f") == b"2"
    with pytest.raises(NotFound):
        writer.rename(b"e/d/g", b"x", ANY)


def test_deletes(source: Connector, writer: Writer) -> None:
    old = put(writer, b"f", b"old")
    version = put(writer, b"f", b"new")
    with pytest.raises(Stale):
        writer.delete(b"f", old)
    writer.delete(b"f", version)
    with pytest.raises(NotFound):
        source.stat(b"f")
    with pytest.raises(NotFound):
        writer.delete(b"f", version)
    writer.delete(b"f", ANY)
    with pytest.raises(ValueError, match="absent"):
        writer.delete(b"f", ABSENT)


def test_directories(source: Connector, writer: Writer) -> None:
    writer.mkdir(b"d", ABSENT)
    writer.mkdir(b"d", ANY)
    assert source.stat(b"d").fingerprint == DIRECTORY
    assert keys_of(entries(source.list_dir(b""))) == [b"d/"]
    with pytest.raises(AlreadyExists):
        writer.mkdir(b"d", ABSENT)
    put(writer, b"d/f", b"1")
    with pytest.raises(NotEmpty):
        writer.delete(b"d", DIRECTORY)
    writer.delete(b"d/f", ANY)
    writer.mkdir(b"d", ANY)
    writer.delete(b"d", DIRECTORY)
    assert entries(source.list_dir(b"")) == []
    with pytest.raises(NotFound):
        writer.delete(b"d", DIRECTORY)
