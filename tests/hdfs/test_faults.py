"""Parts of HDFS that are silent or dead: bytes or an error within 12 s, and no thread is lost."""

from __future__ import annotations

import concurrent.futures
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from cachefs.core.errors import CacheFSError, Unreachable
from cachefs.core.model import Fingerprint
from connectors.base import Connector
from tests.hdfs.conftest import Source
from tests.services.processes import wait_until

LIMIT_S = 15.0  # 12 s, and some for a busy machine; two calls that wait take 16 s
READERS = 16
SMALL = {f"s{number:02}": random.Random(number).randbytes(110 << 10) for number in range(32)}
BIG = random.Random(1).randbytes(12 << 20)


@pytest.fixture
def filled(source: Source) -> Source:
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        list(pool.map(lambda name: source.write(name, SMALL[name]), SMALL))
    source.write("big", BIG)
    return source


@pytest.fixture(autouse=True)
def no_thread_is_lost() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [each for each in threading.enumerate() if each not in before]
    assert [each for each in left if not each.name.startswith("hdfs-deadlines")] == []


def versions(connector: Connector) -> dict[str, Fingerprint]:
    pages = connector.list_dir(b"")
    return {e.name.decode(): e.fingerprint for page in pages for e in page.entries}


def outcome(act: Callable[[], object]) -> tuple[float, object]:
    """The seconds and the result, or the error, of a call."""
    started = time.monotonic()
    try:
        found = act()
    except CacheFSError as error:
        found = error
    return time.monotonic() - started, found


def longest_s(results: list[tuple[float, object]]) -> float:
    return max(seconds for seconds, _ in results)


def read_on(
    connector: Connector, version: Fingerprint, body: Iterator[memoryview], data: bytearray
) -> None:
    """Reads the rest of the big file as a fill does: after a body that broke off it requests what
    is missing. Each step ends in time."""
    while len(data) < len(BIG):
        seconds, piece = outcome(functools.partial(next, body))
        assert seconds < LIMIT_S
        if isinstance(piece, memoryview):
            data += piece
        else:
            assert isinstance(piece, CacheFSError)
            assert piece.retryable, piece
            body = iter(connector.read(b"big", len(data), len(BIG) - len(data), version))


def read_all_of(connector: Connector, known: dict[str, Fingerprint]) -> list[tuple[float, object]]:
    """Reads every small file, many at a time."""

    def read(name: str) -> object:
        return bytes(connector.read_all(name.encode(), known[name])) == SMALL[name]

    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda name: outcome(lambda: read(name)), SMALL))


def test_a_stopped_datanode_of_two_costs_no_file(filled: Source) -> None:
    known = versions(filled.connector)
    assert all(found is True for _, found in read_all_of(filled.connector, known))
    with filled.cluster.datanodes[0].stopped():
        results = read_all_of(filled.connector, known)
    assert longest_s(results) < LIMIT_S, results
    assert all(found is True for _, found in results)


@pytest.mark.parametrize("number", [0, 1])
def test_a_datanode_that_stops_in_the_middle_of_a_file(filled: Source, number: int) -> None:
    version = versions(filled.connector)["big"]
    body = iter(filled.connector.read(b"big", 0, len(BIG), version))
    data = bytearray(next(body))
    with filled.cluster.datanodes[number].stopped():
        read_on(filled.connector, version, body, data)
    assert bytes(data) == BIG


def test_with_both_datanodes_stopped_a_read_fails(new_source: Callable[..., Source]) -> None:
    source = new_source(deadline_s=1.0)
    source.write("f", SMALL["s00"])
    version = source.connector.stat(b"f").fingerprint
    first, second = source.cluster.datanodes
    with first.stopped(), second.stopped():
        seconds, found = outcome(lambda: source.connector.read_all(b"f", version))
    assert isinstance(found, Unreachable), found  # others may reach them
    assert seconds < LIMIT_S
    assert source.connector.read_all(b"f", version) == SMALL["s00"]


def calls(connector: Connector, known: dict[str, Fingerprint]) -> list[Callable[[], object]]:
    return [
        lambda: connector.stat(b"s01"),
        lambda: list(connector.list_dir(b"")),
        lambda: connector.read_all(b"s01", known["s01"]),
        lambda: b"".join(connector.read(b"big", 0, len(BIG), known["big"])),
        connector.check,
    ]


def test_a_stopped_namenode_is_an_error_in_time(filled: Source) -> None:
    connector, known = filled.connector, versions(filled.connector)
    assert connector.read_all(b"s01", known["s01"]) == SMALL["s01"]
    acts = calls(connector, known) * 8
    with (
        filled.cluster.namenode.stopped(),
        concurrent.futures.ThreadPoolExecutor(len(acts)) as pool,
    ):
        results = list(pool.map(outcome, acts))
    assert longest_s(results) < LIMIT_S, results
    assert all(isinstance(found, CacheFSError) for _, found in results)
    assert all(found is True for _, found in read_all_of(connector, known))


def test_a_first_call_to_a_stopped_namenode(new_source: Callable[..., Source]) -> None:
    connector = new_source().connector
    source = new_source()
    with source.cluster.namenode.stopped():
        seconds, found = outcome(connector.check)
    assert seconds < LIMIT_S
    assert isinstance(found, CacheFSError)
    assert "NameNode" in found.one_line()


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_datanode_of_two_is_not_noticed(filled: Source, number: int) -> None:
    known = versions(filled.connector)
    body = iter(filled.connector.read(b"big", 0, len(BIG), known["big"]))
    data = bytearray(next(body))
    filled.cluster.datanodes[number].kill()
    results = read_all_of(filled.connector, known)
    assert all(found is True for _, found in results)
    read_on(filled.connector, known["big"], body, data)
    assert bytes(data) == BIG


def test_a_namenode_that_starts_again_is_found(new_source: Callable[..., Source]) -> None:
    source = new_source(deadline_s=1.0)
    source.write("f", b"123")
    version = source.connector.stat(b"f").fingerprint
    source.cluster.namenode.kill()
    with pytest.raises(Unreachable, match="not reached"):
        source.connector.stat(b"f")
    source.cluster.start()
    assert wait_until(lambda: _read(source, version) == b"123", "the file is read again", 60.0)


def _read(source: Source, version: Fingerprint) -> bytes:
    try:
        return bytes(source.connector.read_all(b"f", version))
    except CacheFSError as error:
        print(error.one_line())
        return b""
