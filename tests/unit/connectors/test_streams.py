"""Small reads by one thread: bodies are right or the read is given back, and each is told once."""

from __future__ import annotations

import functools
import os
import queue
import random
import select
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BY_CODE
from connectors.base import Ask
from connectors.streams import (
    BODY_BYTES,
    CONNECT_LIMIT_S,
    CONNECTIONS,
    HEAD_BYTES,
    KEPT_BYTES,
    KEPT_S,
    LIMIT_S,
    SILENCE_LIMIT_S,
    Streams,
    parse_head,
)
from tests.unit.connectors.raw_http import LIMIT_S as WAIT_S
from tests.unit.connectors.raw_http import (
    Pending,
    RawServer,
    Request,
    Rig,
    answer,
    content,
    reply,
    rig,
)

SIZES = [1, 2, 1000, HEAD_BYTES, 100_000, BODY_BYTES - 1, BODY_BYTES]


@pytest.fixture(name="rig")
def new_rig() -> Iterator[Rig]:
    with rig() as made:
        yield made


def is_given_back(read: Pending) -> bool:
    """With an error that others know, and no more bytes than were asked for."""
    assert read.result() is None
    [(size_bytes, code)] = read.ended
    return code in BY_CODE and 0 <= size_bytes < int(read.target.rpartition("/")[2])


def _has_asked(server: RawServer, count: int) -> bool:
    return len(server.requests) >= count


def _has_ended(server: RawServer, count: int) -> bool:
    return server.ended >= count


# ---- what goes well ----


def test_bodies_of_many_files_at_once(rig: Rig) -> None:
    seed = 11
    rng = random.Random(seed)
    sizes = [*SIZES, *(int(BODY_BYTES ** rng.random()) for _ in range(150))]
    rng.shuffle(sizes)

    def in_pieces(request: Request) -> bool:
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
    def cut(request: Request) -> bool:
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
    def drip(request: Request) -> bool:
        for byte in reply(request.target):
            rig.send(request, bytes([byte]))
        return True

    rig.server.script = drip
    assert rig.is_right(rig.start("/f/3"))


def test_headers_may_be_written_otherwise(rig: Rig) -> None:
    def shouted(request: Request) -> bool:
        head, _, body = reply(request.target).partition(b"\r\n\r\n")
        first, _, headers = head.partition(b"\r\n")
        lines = [line.partition(b":") for line in headers.split(b"\r\n")]
        shout = b"\r\n".join(name.upper() + b":" + value + b" \t" for name, _, value in lines)
        request.sock.sendall(b"\r\n".join([first.split(b" Partial")[0], shout, b"", body]))
        return True

    rig.server.script = shouted
    assert rig.is_right(rig.start("/f/10"))


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
    def script(request: Request) -> bool:
        answer(request)
        return False

    rig.server.script = script
    for number in range(3):
        assert rig.is_right(rig.start(f"/{number}/100"))
        rig.clock.wait(lambda: not rig.streams._connections, "it is not seen to be closed")
    assert rig.server.connections == 3


@pytest.mark.parametrize("how", ["end", "reset"])
def test_one_that_closes_as_it_is_asked_is_replaced(rig: Rig, how: str) -> None:
    def once(request: Request) -> bool:
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
    def once(request: Request) -> bool:
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
    def script(request: Request) -> bool:
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

            def script(request: Request, gathered: threading.Barrier = gathered) -> bool:
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

    def script(request: Request) -> bool:
        return go.acquire(timeout=WAIT_S) and answer(request)

    rig.server.script = script
    reads = [rig.start(f"/{number}/10") for number in range(CONNECTIONS + 6)]
    for done in range(6):
        most = CONNECTIONS + done
        rig.server.wait(functools.partial(_has_asked, rig.server, most), "fewer at once")
        assert sum(read.asked for read in reads) == most
        go.release()
    go.release(CONNECTIONS)
    assert all(rig.is_right(read) for read in reads)
    assert rig.server.connections == CONNECTIONS


# ---- what does not go well ----

RIGHT = reply("/f/100")
BODY = content("/f/100", 100)


def instead(old: bytes, new: bytes) -> bytes:
    assert RIGHT.count(old) == 1
    return RIGHT.replace(old, new)


ANSWERS = {
    "403": instead(b"206 Partial Content", b"403 Forbidden"),
    "404": instead(b"206 Partial Content", b"404 Not Found"),
    "412": instead(b"206 Partial Content", b"412 Precondition Failed"),
    "304-without-body": b'HTTP/1.1 304 Not Modified\r\nETag: "/f/100"\r\n\r\n',
    "200": instead(b"206 Partial Content", b"200 OK"),
    "200-another-length": b'HTTP/1.1 200 OK\r\nETag: "/f/100"\r\nContent-Length: 3\r\n\r\nabc',
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" + RIGHT,
    "another-etag": instead(b'ETag: "/f/100"', b'ETag: "/g/100"'),
    "another-range": instead(b"bytes 0-99/100", b"bytes 1-100/101"),
    "no-length": instead(b"Content-Length: 100\r\n", b""),
    "shorter": instead(b"Content-Length: 100", b"Content-Length: 99"),
    "longer": instead(b"Content-Length: 100", b"Content-Length: 101") + b"x",
    "length-of-no-number": instead(b"Content-Length: 100", b"Content-Length: 0x64"),
    "two-lengths": instead(b"Content-Length: 100", b"Content-Length: 100\r\ncontent-length: 7"),
    "two-etags": instead(b'ETag: "/f/100"', b'ETag: "x"\r\nETag: "/f/100"'),
    "chunked": instead(b"Content-Length: 100", b"Transfer-Encoding: chunked"),
    "chunked-with-length": instead(b"ETag", b"Transfer-Encoding: chunked\r\nETag"),
    "chunked-with-a-space": instead(b"ETag", b"Transfer-Encoding : chunked\r\nETag"),
    "chunked-on-a-second-line": instead(b"ETag", b"Transfer-Encoding:\r\n chunked\r\nETag"),
    "encoded": instead(b"ETag", b"Content-Encoding: gzip\r\nETag"),
    "long-head": instead(b"ETag", b"X: " + b"x" * HEAD_BYTES + b"\r\nETag"),
    "head-without-end": b"HTTP/1.1 206 Partial Content\r\nX: " + b"x" * HEAD_BYTES,
    "http-1.0": instead(b"HTTP/1.1", b"HTTP/1.0"),
    "http-2": instead(b"HTTP/1.1", b"HTTP/2"),
    "long-status": instead(b"206 ", b"2060 "),
    "short-status": instead(b"206 ", b"20 "),
    "superscript-status": instead(b"206 ", "²06 ".encode("latin-1")),
    "no-status": b"HTTP/1.1\r\n\r\n",
    "no-head": b"\r\n\r\n",
    "garbage": bytes(range(256)) * 2 + b"\r\n\r\n" + BODY,
    "more-than-the-body": RIGHT + b"x",
    "another-answer-behind": RIGHT + RIGHT,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_given_back_after_another_answer(rig: Rig, name: str) -> None:
    """And the connection is not used again."""

    def script(request: Request) -> bool:
        request.sock.sendall(ANSWERS[name] if request.connection == 0 else RIGHT)
        return True

    rig.server.script = script
    read = rig.start("/f/100")
    assert is_given_back(read)
    assert read.ended[0][0] == 0
    rig.server.wait(lambda: rig.server.ended == 1, "the connection is kept")
    assert rig.is_right(rig.start("/f/100"))
    assert rig.server.connections == 2


def test_a_long_head_is_given_back_where_a_large_buffer_is_at_hand(rig: Rig) -> None:
    def script(request: Request) -> bool:
        request.sock.sendall(reply(request.target, "X: " + "x" * HEAD_BYTES))
        return True

    rig.server.script = script
    rig.streams._buffers.append(bytearray(1 << 20))
    rig.streams._kept_bytes = 1 << 20
    assert is_given_back(rig.start("/f/100"))


def test_the_longest_head(rig: Rig) -> None:
    def script(request: Request) -> bool:
        room = HEAD_BYTES + 100 - len(reply(request.target, "X: "))
        request.sock.sendall(reply(request.target, "X: " + "x" * room))
        return True

    rig.server.script = script
    assert rig.is_right(rig.start("/f/100"))


@pytest.mark.parametrize("at", [1, len(RIGHT) - 101, len(RIGHT) - 100, len(RIGHT) - 1])
def test_given_back_where_the_answer_is_cut(rig: Rig, at: int) -> None:
    def script(request: Request) -> bool:
        rig.send(request, RIGHT[:at])
        return False

    rig.server.script = script
    read = rig.start("/f/100")
    assert is_given_back(read)
    assert read.ended[0] == (max(0, at - (len(RIGHT) - 100)), "unreachable")


def test_a_body_that_goes_on_later_ends_its_connection(rig: Rig) -> None:
    def script(request: Request) -> bool:
        rig.send(request, RIGHT)
        request.sock.sendall(b"more")
        return True

    rig.server.script = script
    for number in range(3):
        assert rig.is_right(rig.start("/f/100"))
        rig.server.wait(functools.partial(_has_ended, rig.server, number + 1), "it is kept")


def test_what_comes_behind_a_body_is_left(rig: Rig) -> None:
    def script(request: Request) -> bool:
        rig.send(request, RIGHT[:-50])
        request.sock.sendall(RIGHT[-50:] + b"more")
        return True

    rig.server.script = script
    assert rig.is_right(rig.start("/f/100"))
    rig.server.wait(lambda: rig.server.ended == 1, "the connection is kept")


@pytest.mark.parametrize("place", ["closed", "nobody"])
def test_given_back_where_no_connection_comes(rig: Rig, place: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    if place == "nobody":  # the system says so at once
        address = ("255.255.255.255", 9)
    read = rig.start("/f/100", (socket.AF_INET, address))
    assert is_given_back(read)
    assert read.ended == [(0, "unreachable")]
    assert rig.is_right(rig.start("/g/100"))


class FullQueue:
    """An address that takes no connection and refuses none: its queue is full."""

    def __enter__(self) -> tuple[str, int]:
        self.sockets = [socket.create_server(("127.0.0.1", 0), backlog=0)]
        address: tuple[str, int] = self.sockets[0].getsockname()
        for _ in range(8):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(address)
            self.sockets.append(sock)
        return address

    def __exit__(self, *_: object) -> None:
        for sock in self.sockets:
            sock.close()


def test_given_back_where_a_connection_takes_long(rig: Rig) -> None:
    with FullQueue() as address:
        read = rig.start("/f/100", (socket.AF_INET, address))
        rig.clock.wait(lambda: bool(rig.streams._connections), "it does not try")
        rig.clock.now_s += CONNECT_LIMIT_S
        rig.turn()
        assert not read.taken
        rig.clock.now_s += 1.5
        rig.turn()
        assert is_given_back(read)


@pytest.mark.parametrize("at", [0, 10, len(RIGHT) - 50])
def test_given_back_after_silence(rig: Rig, at: int) -> None:
    silent = threading.Event()
    over = threading.Event()

    def script(request: Request) -> bool:
        if at:
            rig.send(request, RIGHT[:at])
        silent.set()
        return over.wait(WAIT_S)

    rig.server.script = script
    read = rig.start("/f/100")
    assert silent.wait(WAIT_S)
    rig.clock.now_s += SILENCE_LIMIT_S - 1
    rig.turn()
    assert not read.taken
    rig.clock.now_s += 2.5
    rig.turn()
    assert is_given_back(read)
    over.set()


def test_given_back_where_an_answer_trickles(rig: Rig) -> None:
    """However short the silence between its bytes is."""
    came: queue.SimpleQueue[Request] = queue.SimpleQueue()
    over = threading.Event()

    def script(request: Request) -> bool:
        came.put(request)
        return over.wait(WAIT_S)

    rig.server.script = script
    began_s = rig.clock.now_s
    read = rig.start("/f/100")
    request = came.get(timeout=WAIT_S)
    for byte in RIGHT[:-1]:
        rig.send(request, bytes([byte]))
        rig.clock.now_s += SILENCE_LIMIT_S / 10
        rig.turn()
        if read.taken:
            break
    assert is_given_back(read)
    assert LIMIT_S < rig.clock.now_s - began_s < LIMIT_S + SILENCE_LIMIT_S / 2
    over.set()


def test_a_file_that_is_too_large_is_not_asked_for(rig: Rig) -> None:
    assert is_given_back(rig.start(f"/f/{BODY_BYTES + 1}"))
    assert rig.server.requests == []


def test_what_is_not_to_be_asked_for(rig: Rig) -> None:
    taken: list[object] = []
    assert rig.streams.start(lambda: None, taken.append)
    rig.turn()
    assert taken == [None]
    assert rig.server.connections == 0


# ---- the end ----


@pytest.mark.parametrize("count", [0, 1, CONNECTIONS + 100])
def test_close_gives_everything_back(rig: Rig, count: int) -> None:
    over = threading.Event()
    rig.server.script = lambda _: over.wait(WAIT_S)
    reads = [rig.start(f"/{number}/10") for number in range(count)]
    rig.server.wait(lambda: len(rig.server.requests) == min(count, CONNECTIONS), "not asked")
    assert rig.streams.close(WAIT_S)
    assert rig.streams.close(0)
    assert [read.taken for read in reads] == [[None]] * count
    assert sum(read.asked for read in reads) == min(count, CONNECTIONS)
    assert not rig.start("/after/10").started
    over.set()


def test_close_does_not_wait_for_ever(rig: Rig) -> None:
    taking, over = threading.Event(), threading.Event()

    def taken(_: memoryview | None) -> None:
        taking.set()
        over.wait(WAIT_S)

    assert rig.streams.start(lambda: None, taken)
    assert taking.wait(WAIT_S)
    assert not rig.streams.close(0.01)
    over.set()


def test_reads_that_start_beside_the_end_are_told_once_or_refused() -> None:
    for _ in range(20):
        with rig() as made:
            ready = threading.Barrier(5)

            def start(made: Rig = made, ready: threading.Barrier = ready) -> None:
                ready.wait(WAIT_S)
                for number in range(50):
                    made.start(f"/{number}/10")

            threads = [threading.Thread(target=start) for _ in range(4)]
            for thread in threads:
                thread.start()
            ready.wait(WAIT_S)
            assert made.streams.close(WAIT_S)
            for thread in threads:
                thread.join(WAIT_S)
            assert len(made.reads) == 200


def fail() -> None:
    raise ZeroDivisionError("nobody expected it")


def test_an_error_of_prepare_ends_it(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    assert rig.is_right(rig.start("/first/10"))
    over = threading.Event()
    rig.server.script = lambda _: over.wait(WAIT_S)
    under_way = [rig.start(f"/{number}/10") for number in range(5)]
    rig.server.wait(lambda: len(rig.server.requests) == 6, "not asked")
    assert rig.streams._thread is not None
    bad = [rig.start("/bad/10", then=fail) for _ in range(3)]
    rig.streams._thread.join(WAIT_S)
    assert bad[0].started
    assert all(read.taken == [None] for read in under_way + bad if read.started)
    assert not rig.start("/after/10").started
    assert "read by threads" in caplog.text
    over.set()


@pytest.mark.parametrize("which", ["taken", "ended", "is_it"])
def test_an_error_of_what_it_calls_ends_it(
    rig: Rig, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the same read is told no second time."""
    called: list[str] = []

    def call(name: str) -> None:
        called.append(name)
        if name == which:
            fail()

    def is_it(*_: object) -> bool:
        call("is_it")
        return True

    def prepare() -> Ask:
        head = b"GET /f/10 HTTP/1.1\r\n\r\n"
        return Ask(rig.server.address, head, 10, is_it, lambda *_: call("ended"))

    assert rig.streams.start(prepare, lambda _: call("taken"))
    thread = rig.streams._thread
    assert thread is not None
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert called == ["is_it", "ended", "taken"]
    assert not rig.start("/after/10").started


def test_an_error_as_a_connection_is_replaced_ends_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(request: Request) -> bool:
        return not request.number and answer(request)

    rig.server.script = script
    assert rig.is_right(rig.start("/a/10"))
    monkeypatch.setattr("connectors.streams.Connection", lambda _: fail())
    read = rig.start("/b/10")
    assert is_given_back(read)
    rig.server.wait(lambda: rig.server.ended == 1, "the connection is kept")


def test_all_others_are_told_where_one_of_them_fails_at_the_end(rig: Rig) -> None:
    """At the end of everything, that is."""
    over = threading.Event()
    rig.server.script = lambda _: over.wait(WAIT_S)
    before = [rig.start(f"/a{number}/10") for number in range(3)]

    def taken(_: memoryview | None) -> None:
        fail()

    head = b"GET /f/10 HTTP/1.1\r\n\r\n"
    ask = Ask(rig.server.address, head, 10, lambda *_: True, lambda *_: None)
    assert rig.streams.start(lambda: ask, taken)
    behind = [rig.start(f"/b{number}/10") for number in range(CONNECTIONS)]
    rig.server.wait(lambda: len(rig.server.requests) == CONNECTIONS, "not asked")
    assert rig.streams.close(WAIT_S)
    assert all(read.taken == [None] for read in before + behind)
    over.set()


def test_it_cannot_begin_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> select.epoll:
        raise OSError(24, "Too many open files")

    streams = Streams("streams", lambda: 0.0)
    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(select, "epoll", none_left)
        assert not streams.start(lambda: None, lambda _: None)
    assert set(os.listdir("/proc/self/fd")) == before
    done = threading.Event()
    assert streams.start(lambda: None, lambda _: done.set())
    assert done.wait(WAIT_S)
    assert streams.close(WAIT_S)


@pytest.mark.parametrize("how", ["close", "error"])
def test_no_descriptor_is_left(how: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with rig() as made:
        assert all(made.is_right(made.start(f"/{number}/10")) for number in range(3))
        over = threading.Event()
        made.server.script = lambda _: over.wait(WAIT_S)
        reads = [made.start(f"/{number}/10") for number in range(5)]
        made.server.wait(lambda: len(made.server.requests) == 8, "not asked")
        thread = made.streams._thread
        assert thread is not None
        if how == "error":
            made.start("/bad/10", then=fail)
            thread.join(WAIT_S)
        else:
            assert made.streams.close(WAIT_S)
        assert [read.result() for read in reads] == [None] * 5
        over.set()
    assert set(os.listdir("/proc/self/fd")) == before


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
