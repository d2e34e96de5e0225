"""What requests tell of their connections: each connection and each handshake once, as the server
counts them. Connections that nobody uses are closed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from cachefs.core.model import UfsSpec
from connectors import idle
from connectors.compose import open_connector
from connectors.fetch import connection_pool
from connectors.fetch.connection_pool import ConnectionPool
from connectors.fetch.request import NewConnections
from connectors.meter import Meter
from tests.services.many_thread import ManyThread
from tests.unit.connectors.raw_http import LIMIT_S, Came, RawServer, answer, content, get, reply
from tests.unit.connectors.scripted_s3 import ScriptedS3
from tests.unit.connectors.test_fetch_lanes import read
from tests.unit.connectors.test_s3_connections import READS
from tests.unit.connectors.test_s3_tls import DATA, VERSION
from tests.unit.connectors.test_s3_tls import answer as s3_answer

AT_ONCE = 16
SMALL_READS = 1000


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def counted(meter: Meter) -> Iterator[ConnectionPool]:
    made = ConnectionPool(meter.made)
    yield made
    made.close()


def figures(meter: Meter) -> NewConnections:
    found = meter.snapshot()
    return NewConnections(found.connections, found.handshakes)


def of_server(raw: RawServer) -> NewConnections:
    return NewConnections(raw.connections, len(raw.resumed))


def test_a_kept_connection_makes_no_second_handshake(
    raw: RawServer, counted: ConnectionPool, meter: Meter
) -> None:
    for number in range(5):
        assert read(counted, get(raw, f"/{number}/1000"))[1] is None
    assert figures(meter) == of_server(raw) == NewConnections(1, 1 if raw.certificate else 0)


def test_a_new_connection_resumes_the_session(
    raw: RawServer, counted: ConnectionPool, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the lane was closed meanwhile. Only the server knows that it was resumed."""
    assert read(counted, get(raw, "/f/1000"))[1] is None
    monkeypatch.setattr(connection_pool, "KEPT_S", 0.0)
    for _ in range(3):
        assert read(counted, get(raw, "/f/1000"))[1] is None
    assert figures(meter) == of_server(raw) == NewConnections(4, 4 if raw.certificate else 0)
    assert raw.resumed in ([], [False, True, True, True])


def small_reads(raw: RawServer, count: int) -> list[NewConnections]:
    """Reads many small files, `AT_ONCE` at a time; returns what each read told."""
    many, places = ManyThread(), threading.Semaphore(AT_ONCE)
    told: list[NewConnections] = []
    wrong: list[str] = []

    def start(target: str) -> None:
        def taken(body: memoryview | None, came: int, code: str, made: NewConnections) -> None:
            told.append(made)
            if body is None or bytes(body) != content(target, 1000):
                wrong.append(f"{target}: {code}")
            places.release()

        assert many.start(get(raw, target), taken)

    for number in range(count):
        assert places.acquire(timeout=LIMIT_S)
        start(f"/{number}/1000")
    for _ in range(AT_ONCE):
        assert places.acquire(timeout=LIMIT_S)
    many.close(LIMIT_S)
    assert wrong == []
    return told


def test_many_small_reads_make_few_connections(raw: RawServer) -> None:
    told = small_reads(raw, SMALL_READS)
    assert len(told) == SMALL_READS
    assert NewConnections(*(sum(column) for column in zip(*told, strict=True))) == of_server(raw)
    assert raw.connections <= AT_ONCE


def closing(came: Came) -> bool:
    """Answers, says that the connection ends, and ends it."""
    came.sock.sendall(reply(came.target, "Connection: close"))
    return False


def test_small_reads_on_connections_that_end_resume_the_session(raw: RawServer) -> None:
    raw.script = closing
    told = small_reads(raw, 3 * AT_ONCE)
    assert sum(made.connections for made in told) == raw.connections == 3 * AT_ONCE
    if raw.certificate:
        assert any(raw.resumed), "handshakes that begin before a ticket has come cannot"


def test_the_figures_of_a_source_are_those_of_its_server(server: ScriptedS3, meter: Meter) -> None:
    spec = UfsSpec("s3://bucket", {"endpoint_url": server.url, "region": "us-east-1"})
    source = open_connector(spec, deadline_s=30.0, meter=meter)
    server.script = s3_answer  # closes each connection behind its answer
    for _ in range(READS):
        source.check()
        assert bytes(source.read_all(b"f", VERSION)) == DATA
    ask = source.ask(b"f", 0, VERSION.size, VERSION)
    assert ask is not None
    ask.made(NewConnections(3, 2))
    source.close()
    handshakes = server.connections if server.tls else 0
    assert server.connections == 2 * READS
    assert figures(meter) == NewConnections(server.connections + 3, handshakes + 2)


# ---- connections that nobody uses ----


def descriptors() -> set[tuple[str, str]]:
    """Returns the open descriptors, each with what it refers to."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself, or closed just now
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def test_idle_lanes_give_their_descriptors_back(
    raw: RawServer, counted: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the call of a server, without a request."""
    before = descriptors()
    held = threading.Barrier(8 + 1)

    def script(came: Came) -> bool:
        held.wait(LIMIT_S)
        return answer(came)

    raw.script = script
    reading = [
        threading.Thread(target=read, args=(counted, get(raw, f"/{number}/10")))
        for number in range(8)
    ]
    for thread in reading:
        thread.start()
    held.wait(LIMIT_S)
    for thread in reading:
        thread.join(LIMIT_S)
    kept = descriptors() - before
    assert len(kept) >= 8 * 4
    idle.close_idle()
    assert kept <= descriptors(), "they were used just now"
    monkeypatch.setattr(connection_pool, "KEPT_S", 0.0)
    idle.close_idle()
    raw.wait(lambda: raw.has_ended(8), "the server sees the ends")
    left = kept & descriptors()
    assert len(left) <= 8, "the server's ends of the connections at most"
