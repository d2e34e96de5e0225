"""Small reads by one thread: what does not go well is given back, and its connection is left."""

from __future__ import annotations

import functools
import queue
import socket
import threading

import pytest

from connectors.streams import (
    BODY_BYTES,
    CONNECT_LIMIT_S,
    HEAD_BYTES,
    LIMIT_S,
    SILENCE_LIMIT_S,
)
from tests.unit.connectors.raw_http import LIMIT_S as WAIT_S
from tests.unit.connectors.raw_http import (
    Came,
    Pending,
    Rig,
    answer,
    content,
    is_given_back,
    reply,
)

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

    def script(request: Came) -> bool:
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
    def script(request: Came) -> bool:
        request.sock.sendall(reply(request.target, "X: " + "x" * HEAD_BYTES))
        return True

    rig.server.script = script
    rig.streams._buffers.append(bytearray(1 << 20))
    rig.streams._kept_bytes = 1 << 20
    assert is_given_back(rig.start("/f/100"))


def test_the_longest_head(rig: Rig) -> None:
    def script(request: Came) -> bool:
        room = HEAD_BYTES + 100 - len(reply(request.target, "X: "))
        request.sock.sendall(reply(request.target, "X: " + "x" * room))
        return True

    rig.server.script = script
    assert rig.is_right(rig.start("/f/100"))


@pytest.mark.parametrize("at", [1, len(RIGHT) - 101, len(RIGHT) - 100, len(RIGHT) - 1])
def test_given_back_where_the_answer_is_cut(rig: Rig, at: int) -> None:
    def script(request: Came) -> bool:
        rig.send(request, RIGHT[:at])
        return False

    rig.server.script = script
    read = rig.start("/f/100")
    assert is_given_back(read)
    assert read.ended[0] == (max(0, at - (len(RIGHT) - 100)), "unreachable")


def test_a_body_that_goes_on_later_ends_its_connection(rig: Rig) -> None:
    def script(request: Came) -> bool:
        rig.send(request, RIGHT)
        request.sock.sendall(b"more")
        return True

    rig.server.script = script
    for number in range(3):
        assert rig.is_right(rig.start("/f/100"))
        rig.server.wait(functools.partial(rig.server.has_ended, number + 1), "it is kept")


def test_what_comes_behind_a_body_is_left(rig: Rig) -> None:
    def script(request: Came) -> bool:
        rig.send(request, RIGHT[:-50])
        request.sock.sendall(RIGHT[-50:] + b"more")
        return True

    rig.server.script = script
    assert rig.is_right(rig.start("/f/100"))
    rig.server.wait(lambda: rig.server.ended == 1, "the connection is kept")


def test_what_comes_behind_a_body_answers_nobody(rig: Rig) -> None:
    """However much it looks like the answer to the next request."""
    other = "/other/100"

    def script(request: Came) -> bool:
        if request.target == other:
            return answer(request)
        rig.send(request, RIGHT[:-50])
        request.sock.sendall(RIGHT[-50:] + reply(other)[:-100] + b"W" * 100)
        return True

    rig.server.script = script
    next_ones: list[Pending] = []
    # The next read begins in the moment in which this one's bytes are taken.
    first = rig.start("/f/100", taken=lambda: next_ones.append(rig.start(other)))
    assert rig.is_right(first)
    assert rig.is_right(next_ones[0])
    assert rig.server.requests == ["/f/100", other]
    assert rig.server.connections == 2


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

    def script(request: Came) -> bool:
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
    came: queue.SimpleQueue[Came] = queue.SimpleQueue()
    over = threading.Event()

    def script(request: Came) -> bool:
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


def test_what_came_while_others_took_long_is_not_late(rig: Rig) -> None:
    """They are told in the same thread: the next ones' bytes wait in their sockets meanwhile."""
    taking, sent = threading.Event(), threading.Event()

    def script(request: Came) -> bool:
        if request.target != "/first/100":
            assert taking.wait(WAIT_S)
        answer(request)
        if request.target != "/first/100":
            sent.set()
        return True

    def takes_long() -> None:
        taking.set()
        assert sent.wait(WAIT_S)
        rig.clock.now_s += LIMIT_S + 1

    rig.server.script = script
    later = rig.start("/later/100")
    rig.server.wait(lambda: len(rig.server.requests) == 1, "not asked")
    first = rig.start("/first/100", taken=takes_long)
    assert rig.is_right(first)
    assert rig.is_right(later)
