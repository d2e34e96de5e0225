"""Small reads by one thread: bodies are right, connections are used again, and all is bounded."""

from __future__ import annotations

import functools
import random
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.streams import (
    BODY_BYTES,
    CONNECTIONS,
    HEAD_BYTES,
    KEPT_BYTES,
    KEPT_S,
    parse_head,
)
from tests.unit.connectors.raw_http import LIMIT_S as WAIT_S
from tests.unit.connectors.raw_http import (
    Came,
    RawServer,
    Rig,
    answer,
    is_given_back,
    reply,
)

SIZES = [1, 2, 1000, HEAD_BYTES, 100_000, BODY_BYTES - 1, BODY_BYTES]


# ---- what goes well ----


def test_bodies_of_many_files_at_once(rig: Rig) -> None:
    seed = 11
    rng = random.Random(seed)
    sizes = [*SIZES, *(int(BODY_BYTES ** rng.random()) for _ in range(150))]
    rng.shuffle(sizes)

    def in_pieces(request: Came) -> bool:
        data, at = reply(request.target), 0
        pieces = random.Random(f"{seed}{request.target}")
        while at < len(data):
            end = at + int(len(data) ** pieces.uniform(0.5, 1))
            request.sock.sendall(data[at:end])
            at = end
        return True

    rig.server.script = in_pieces
    reads = [rig.start(f"/{number}/{size}") for number, size in enumerate(sizes)]
    assert all(rig.is_right(read) for read in reads), f"seed {seed}"
    assert rig.server.connections <= CONNECTIONS


def test_a_head_may_be_cut_anywhere(rig: Rig) -> None:
    def cut(request: Came) -> bool:
        data = reply(request.target)
        at = int(request.target.split("/")[1])
        rig.send(request, data[:at])
        request.sock.sendall(data[at:])
        return True

    rig.server.script = cut
    for at in range(1, len(reply("/100/5"))):
        assert rig.is_right(rig.start(f"/{at}/5")), f"cut at {at}"
    assert rig.server.connections == 1


def test_an_answer_may_come_byte_by_byte(rig: Rig) -> None:
    def drip(request: Came) -> bool:
        for byte in reply(request.target):
            rig.send(request, bytes([byte]))
        return True

    rig.server.script = drip
    assert rig.is_right(rig.start("/f/3"))


def test_headers_may_be_written_otherwise(rig: Rig) -> None:
    def shouted(request: Came) -> bool:
        head, _, body = reply(request.target).partition(b"\r\n\r\n")
        first, _, headers = head.partition(b"\r\n")
        lines = [line.partition(b":") for line in headers.split(b"\r\n")]
        shout = b"\r\n".join(name.upper() + b":" + value + b" \t" for name, _, value in lines)
        request.sock.sendall(b"\r\n".join([first.split(b" Partial")[0], shout, b"", body]))
        return True

    rig.server.script = shouted
    assert rig.is_right(rig.start("/f/10"))


def test_buffers_are_used_again_and_bounded(rig: Rig) -> None:
    gathered = threading.Barrier(CONNECTIONS)
    rig.server.script = lambda request: gathered.wait(WAIT_S) >= 0 and answer(request)
    reads = [rig.start(f"/{number}/{BODY_BYTES}") for number in range(CONNECTIONS)]
    assert all(rig.is_right(read) for read in reads)
    rig.turn()
    kept = rig.streams._buffers
    assert 0 < sum(len(buffer) for buffer in kept) == rig.streams._kept_bytes <= KEPT_BYTES
    last = kept[-1]
    rig.server.script = answer
    assert rig.is_right(rig.start("/again/1000"))
    rig.turn()
    assert kept[-1] is last
    assert sum(len(buffer) for buffer in kept) == rig.streams._kept_bytes <= KEPT_BYTES


# ---- connections ----


def test_a_kept_connection_is_used_again(rig: Rig) -> None:
    for number in range(5):
        assert rig.is_right(rig.start(f"/{number}/100"))
    assert rig.server.connections == 1


def test_one_that_was_kept_for_long_is_closed(rig: Rig) -> None:
    assert rig.is_right(rig.start("/a/100"))
    rig.clock.now_s += KEPT_S
    rig.turn()
    rig.server.wait(lambda: rig.server.ended == 1, "it is kept")
    assert rig.is_right(rig.start("/b/100"))
    assert rig.server.connections == 2


def test_one_that_the_server_closed_is_not_used(rig: Rig) -> None:
    def script(request: Came) -> bool:
        answer(request)
        return False

    rig.server.script = script
    for number in range(3):
        assert rig.is_right(rig.start(f"/{number}/100"))
        rig.clock.wait(lambda: not rig.streams._connections, "it is not seen to be closed")
    assert rig.server.connections == 3


@pytest.mark.parametrize("how", ["end", "reset"])
def test_one_that_closes_as_it_is_asked_is_replaced(rig: Rig, how: str) -> None:
    def once(request: Came) -> bool:
        if request.number and how == "reset":
            linger = b"\1\0\0\0\0\0\0\0"
            request.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return not request.number and answer(request)

    rig.server.script = once
    for name in "ab":
        assert rig.is_right(rig.start(f"/{name}/100"))
    assert rig.server.requests == ["/a/100", "/b/100", "/b/100"]
    assert rig.server.connections == 2


def test_one_that_closes_within_its_answer_is_not_replaced(rig: Rig) -> None:
    def once(request: Came) -> bool:
        data = reply(request.target)
        request.sock.sendall(data if not request.number else data[:20])
        return not request.number

    rig.server.script = once
    assert rig.is_right(rig.start("/a/100"))
    assert is_given_back(rig.start("/b/100"))
    assert rig.server.connections == 1


def test_a_new_one_that_closes_unanswered_is_not_replaced(rig: Rig) -> None:
    rig.server.script = lambda _: False
    assert is_given_back(rig.start("/a/100"))
    assert rig.server.connections == 1


@pytest.mark.parametrize(
    "headers", [["Connection: close"], ["connection: Keep-Alive, Close"], ["CONNECTION:CLOSE"]]
)
def test_a_server_that_says_that_it_closes(rig: Rig, headers: list[str]) -> None:
    def script(request: Came) -> bool:
        request.sock.sendall(reply(request.target, *headers))
        return True  # but does not

    rig.server.script = script
    for name in "ab":
        assert rig.is_right(rig.start(f"/{name}/100"))
    assert rig.server.connections == 2


def test_connections_to_many_origins_are_bounded(rig: Rig) -> None:
    others = [RawServer() for _ in range(3)]
    try:
        for server in [rig.server, *others]:
            gathered = threading.Barrier(CONNECTIONS)

            def script(request: Came, gathered: threading.Barrier = gathered) -> bool:
                gathered.wait(WAIT_S)
                return answer(request)

            server.script = script
            reads = [rig.start(f"/{number}/10", server.address) for number in range(CONNECTIONS)]
            assert all(rig.is_right(read) for read in reads)
            assert len(rig.streams._connections) <= CONNECTIONS
        assert sum(server.connections for server in [rig.server, *others]) == 4 * CONNECTIONS
    finally:
        for server in others:
            server.close()


def test_what_is_more_than_the_connections_waits_its_turn(rig: Rig) -> None:
    go = threading.Semaphore(0)

    def script(request: Came) -> bool:
        return go.acquire(timeout=WAIT_S) and answer(request)

    rig.server.script = script
    reads = [rig.start(f"/{number}/10") for number in range(CONNECTIONS + 6)]
    for done in range(6):
        most = CONNECTIONS + done
        rig.server.wait(functools.partial(rig.server.has_asked, most), "fewer at once")
        assert len(rig.server.requests) == most
        go.release()
    go.release(CONNECTIONS)
    assert all(rig.is_right(read) for read in reads)
    assert rig.server.connections == CONNECTIONS


# ---- heads ----


@given(st.binary(max_size=300))
def test_parsing_a_head_raises_nothing(head: bytes) -> None:
    status, headers = parse_head(head)
    assert 0 <= status <= 999
    assert status or not headers


@given(
    st.text("0123456789²³¹٣ ", max_size=4).map(lambda text: text.encode("utf-8")),
    st.text("²³¹", max_size=3).map(lambda text: text.encode("latin-1")),
)
def test_a_status_is_three_digits(some: bytes, odd: bytes) -> None:
    for text in (some, odd, some + odd):
        status, _ = parse_head(b"HTTP/1.1 " + text)
        first = text.split(b" ")[0]
        assert status == (int(first) if len(first) == 3 and first.isdigit() else 0)


NAMES = st.text("abcXYZ019-", min_size=1, max_size=8)
VALUES = st.text('abc 019/"*:,', max_size=12)


@given(st.integers(0, 999), st.dictionaries(NAMES, VALUES, max_size=6))
def test_a_head_is_parsed(status: int, headers: dict[str, str]) -> None:
    by_name = {name.lower(): value.strip() for name, value in headers.items()}
    lines = "".join(f"\r\n{name}:{value}" for name, value in headers.items())
    assert parse_head(f"HTTP/1.1 {status:03} OK{lines}".encode()) == (status, by_name)
