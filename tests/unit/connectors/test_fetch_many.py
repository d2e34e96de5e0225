"""Small files by one thread through libcurl: bodies are right, connections are used again, what
does not go well is given back, and all is bounded."""

from __future__ import annotations

import functools
import os
import queue
import random
import select
import socket
import threading
from collections.abc import Iterator

import pycurl
import pytest

from cachefs.core.errors import BY_CODE, Unreachable
from connectors.fetch import batch_reader as many_module
from connectors.fetch import exchange
from connectors.fetch.batch_reader import BODY_BYTES, ROOM_BYTES, BatchReader
from connectors.fetch.request import AT_ONCE, NOT_SENT, HttpRequest, NewConnections, parse_head
from tests.services.many_thread import ManyThread
from tests.unit.connectors.raw_http import (
    LIMIT_S,
    Came,
    RawServer,
    answer,
    content,
    get,
    in_pieces,
    reply,
    sends,
    size_of,
)
from tests.unit.connectors.raw_replies import OTHERWISE, RIGHT, WRONG, instead, with_any_head

SEED = random.SystemRandom().getrandbits(32)


class Reads:
    """Reads by one thread; `outcomes`: of each target, which is told once."""

    def __init__(self) -> None:
        self.thread = ManyThread()
        self.many = self.thread.many
        self._told: queue.SimpleQueue[tuple[str, bytes | None, int, str]] = queue.SimpleQueue()

    def start(self, request: HttpRequest) -> bool:
        target = "/" + request.url.split("/", 3)[3]

        def taken(body: memoryview | None, came: int, code: str, made: NewConnections) -> None:
            self._told.put((target, None if body is None else bytes(body), came, code))

        return self.thread.start(request, taken)

    def outcome(self) -> tuple[str, bytes | None, int, str]:
        return self._told.get(timeout=LIMIT_S)

    def read(self, request: HttpRequest) -> bytes | None:
        assert self.start(request)
        target, body, came, code = self.outcome()
        if body is None:
            assert code in BY_CODE
            assert 0 <= came <= size_of(target)
        else:
            assert (came, code) == (len(body), "")
        return body

    def close(self) -> None:
        self.thread.close(LIMIT_S)
        assert self._told.empty(), "each read is told once"


@pytest.fixture(autouse=True)
def no_silence_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine, whose CPU client and server share, does not count as a server's silence: some
    tests have hundreds of handshakes at once."""
    connect = (pycurl.CONNECTTIMEOUT_MS, int(LIMIT_S * 1000))
    monkeypatch.setattr(exchange, "_ALWAYS", (*exchange._ALWAYS, connect))
    monkeypatch.setattr(many_module, "SILENCE_LIMIT_S", int(LIMIT_S))
    monkeypatch.setattr(many_module, "LIMIT_S", LIMIT_S)


@pytest.fixture
def reads() -> Iterator[Reads]:
    made = Reads()
    yield made
    made.close()


# ---- what goes well ----


def test_bodies_of_many_files_at_once(raw: RawServer, reads: Reads) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    sizes = [1, 2, 1000, 100_000, BODY_BYTES - 1, BODY_BYTES]
    sizes += [int(BODY_BYTES ** rng.random()) for _ in range(300)]
    rng.shuffle(sizes)

    raw.script = in_pieces(SEED, lambda came: reply(came.target))
    targets = [f"/{number}/{size}" for number, size in enumerate(sizes)]
    for target in targets:
        assert reads.start(get(raw, target))
    found = {target: (body, came, code) for target, body, came, code in map_outcomes(reads, sizes)}
    for target, size in zip(targets, sizes, strict=True):
        assert found[target] == (content(target, size), size, ""), f"seed {SEED}"
    assert raw.connections <= AT_ONCE
    assert reads.many._kept_bytes <= ROOM_BYTES


def map_outcomes(reads: Reads, sizes: list[int]) -> list[tuple[str, bytes | None, int, str]]:
    return [reads.outcome() for _ in sizes]


def test_a_kept_connection_is_used_again(raw: RawServer, reads: Reads) -> None:
    for number in range(5):
        assert reads.read(get(raw, f"/{number}/500")) == content(f"/{number}/500", 500)
    assert raw.connections == 1


def test_one_that_closes_as_it_is_asked_is_replaced(raw: RawServer, reads: Reads) -> None:
    raw.script = lambda came: came.number == 0 and answer(came)
    for number in range(3):
        assert reads.read(get(raw, f"/{number}/5")) == content(f"/{number}/5", 5)


def test_an_idle_connection_that_its_server_closes_makes_no_turn_due(raw: RawServer) -> None:
    """Libcurl does not look at it, so it would be readable for ever."""
    many, bodies = BatchReader(), list[bytes | None]()

    def taken(body: memoryview | None, came: int, code: str, made: NewConnections) -> None:
        bodies.append(None if body is None else bytes(body))
        if body is not None:
            many.give_back(body)

    raw.script = lambda came: answer(came) and False
    for number in range(1, 4):
        many.start(get(raw, f"/{number}/10"), taken)
        while len(bodies) < number:
            many.turn(LIMIT_S)
        raw.wait(lambda closed=number: raw.has_ended(closed), "the server closes")  # type: ignore[misc]
        many.turn()
        assert not select.select([many.fileno()], [], [], 0)[0]
    assert bodies == [content(f"/{number}/10", 10) for number in range(1, 4)]
    many.close()


def test_what_is_more_than_fits_waits_its_turn(raw: RawServer, reads: Reads) -> None:
    go_on = threading.Event()

    def script(came: Came) -> bool:
        go_on.wait(LIMIT_S)
        return answer(came)

    raw.script = script
    targets = [f"/{number}/10" for number in range(AT_ONCE + 20)]
    for target in targets:
        assert reads.start(get(raw, target))
    raw.wait(lambda: raw.has_asked(AT_ONCE), "as many as may")
    assert len(reads.many._running) == AT_ONCE
    go_on.set()
    assert {reads.outcome()[1] for _ in targets} == {content(target, 10) for target in targets}


# ---- what does not ----


@pytest.mark.parametrize("name", WRONG)
def test_given_back_after_another_answer(raw: RawServer, reads: Reads, name: str) -> None:
    """And the next read is not harmed by what is left of it."""

    raw.script = sends(WRONG[name], "/f/100")
    assert reads.read(get(raw, "/f/100")) is None
    assert reads.read(get(raw, "/g/100")) == content("/g/100", 100)


@pytest.mark.parametrize("more", OTHERWISE)
def test_right_ones_that_are_written_otherwise(raw: RawServer, reads: Reads, more: str) -> None:
    raw.script = sends(OTHERWISE[more])
    assert reads.read(get(raw, "/f/100")) == content("/f/100", 100)


def test_what_comes_behind_a_body_answers_nobody(raw: RawServer, reads: Reads) -> None:
    def script(came: Came) -> bool:
        came.sock.sendall(reply(came.target) + (RIGHT if came.number == 0 else b""))
        return True

    raw.script = script
    for target in ("/f/100", "/g/100", "/f/100"):
        assert reads.read(get(raw, target)) in (content(target, 100), None)


@pytest.mark.parametrize("place", ["closed", "nobody"])
def test_given_back_where_no_connection_comes(reads: Reads, place: str) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/f/10"
        if place == "nobody":
            url = "http://no.such.host.invalid/f/10"
        assert reads.read(HttpRequest(url, (), 10, {}, ())) is None


def test_given_back_after_silence(
    raw: RawServer, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_module, "LIMIT_S", 0.2)
    go_on = threading.Event()
    raw.script = lambda came: not go_on.wait(LIMIT_S)
    assert reads.read(get(raw, "/f/10")) is None
    go_on.set()


def test_what_waits_behind_a_silent_server_is_left_to_threads(
    raw: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the reads of other servers would wait until all of its reads have failed."""
    monkeypatch.setattr(many_module, "ROOM_BYTES", many_module.ROUND_BYTES)
    raw.script = lambda came: came.target == "/good/10" and answer(came)
    many, ends = BatchReader(), dict[str, str]()

    def taken(
        target: str, body: memoryview | None, came: int, code: str, made: NewConnections
    ) -> None:
        assert body is None
        ends[target] = code

    for target in ("/silent/10", "/waits/10", "/good/10"):
        many.start(get(raw, target), functools.partial(taken, target))
    while len(ends) < 3:
        many.turn(LIMIT_S)
    many.close()
    assert ends == {
        "/silent/10": Unreachable.code,
        "/waits/10": NOT_SENT,
        "/good/10": NOT_SENT,
    }
    assert raw.requests == ["/silent/10"]


def test_a_length_beyond_the_range_is_not_awaited(
    raw: RawServer, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends the range, and then nothing."""
    for limit in ("SILENCE_LIMIT_S", "LIMIT_S"):
        monkeypatch.setattr(many_module, limit, int(10 * LIMIT_S))
    go_on = threading.Event()

    def script(came: Came) -> bool:
        came.sock.sendall(instead(b"Content-Length: 100", b"Content-Length: 1100"))
        return not go_on.wait(2 * LIMIT_S)

    raw.script = script
    try:
        assert reads.read(get(raw, "/f/100")) is None
    finally:
        go_on.set()


@pytest.mark.parametrize("seed", range(60))
def test_a_head_of_any_bytes(reads: Reads, seed: int) -> None:
    """Either the body is right, or it is given back."""
    raw = RawServer()
    raw.script = sends(with_any_head(seed))
    try:
        assert reads.read(get(raw, "/f/100")) in (None, content("/f/100", 100))
    finally:
        raw.close()


@pytest.mark.parametrize("seed", range(200))
def test_parsing_a_head_raises_nothing(seed: int) -> None:
    rng = random.Random(seed)
    first = rng.choice([b"HTTP/1.1 206 x", b"HTTP/1.1 ", b"HTTP/1.1 20x y", b"\r\n", b""])
    lines = [rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(5))]
    found = parse_head([first + rng.randbytes(5), *lines])
    assert 0 <= found.status <= 999


# ---- the end ----


@pytest.mark.parametrize("count", [0, 1, AT_ONCE + 10])
def test_the_end_gives_everything_back(raw: RawServer, count: int) -> None:
    reads, go_on = Reads(), threading.Event()
    raw.script = lambda came: not go_on.wait(LIMIT_S)
    for number in range(count):
        assert reads.start(get(raw, f"/{number}/10"))
    raw.wait(lambda: raw.has_asked(min(count, AT_ONCE)), "they are asked for")
    reads.thread.close(LIMIT_S)
    assert [reads.outcome()[1:] for _ in range(count)] == [(None, 0, "unreachable")] * count
    assert not reads.start(get(raw, "/late/10"))
    go_on.set()
    reads.close()


def test_an_error_of_who_is_told_ends_it(raw: RawServer) -> None:
    """The others are given back, and no more are taken."""
    reads, go_on = Reads(), threading.Event()

    def fail(body: memoryview | None, came: int, code: str, made: NewConnections) -> None:
        raise ZeroDivisionError

    def script(came: Came) -> bool:
        if came.target == "/slow/10":
            go_on.wait(LIMIT_S)
        return answer(came)

    raw.script = script
    assert reads.start(get(raw, "/slow/10"))
    assert reads.thread.start(get(raw, "/f/10"), fail)
    assert reads.outcome() == ("/slow/10", None, 0, "unreachable")
    go_on.set()
    reads.close()
    assert isinstance(reads.thread.error, ZeroDivisionError)
    assert not reads.start(get(raw, "/late/10"))


def test_no_descriptor_is_left(raw: RawServer) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        reads = Reads()
        assert reads.read(get(raw, "/f/100")) == content("/f/100", 100)
        reads.close()
    raw.wait(lambda: raw.has_ended(3), "the connections are closed")
    left = set(os.listdir("/proc/self/fd")) - before
    assert len(left) <= 3, "those of the server's threads"
