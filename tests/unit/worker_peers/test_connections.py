"""Connections to peers: kept for the next request, and not for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from worker.peers import connections
from worker.peers.connections import KEPT_PER_PEER, KEPT_S, Connection, Connections


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def urls() -> Iterator[list[str]]:
    """Of peers that take connections and say nothing."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    yield [f"http://127.0.0.1:{one.getsockname()[1]}" for one in listeners]
    for listener in listeners:
        listener.close()


def is_open(connection: Connection) -> bool:
    return connection.fileno() >= 0


def test_one_that_was_given_back_is_taken_again(urls: list[str]) -> None:
    it = Connections(1.0, clock=Clock())
    first, is_used = it.take(urls[0])
    assert not is_used
    it.give(urls[0], first)
    assert it.take(urls[0]) == (first, True)
    first.close()
    it.close()


def test_those_that_nobody_takes_are_closed_whosever_they_are(urls: list[str]) -> None:
    clock = Clock()
    it = Connections(1.0, clock=clock)
    old = [(url, it.take(url)[0]) for url in urls]
    for url, connection in old:
        it.give(url, connection)
    clock.now += KEPT_S / 2
    young, _ = it.take(urls[0], fresh=True)
    it.give(urls[0], young)
    assert all(is_open(connection) for _, connection in old)
    clock.now += KEPT_S / 2
    last, _ = it.take(urls[1], fresh=True)
    it.give(urls[1], last)
    assert all(not is_open(connection) for _, connection in old)
    assert it.take(urls[0]) == (young, True)
    assert it.take(urls[1]) == (last, True)
    for connection in (young, last):
        connection.close()
    it.close()


def test_no_more_are_kept_than_a_limit_and_none_of_who_is_gone(urls: list[str]) -> None:
    it = Connections(1.0, clock=Clock())
    many = [it.take(urls[0], fresh=True)[0] for _ in range(KEPT_PER_PEER + 2)]
    for connection in many:
        it.give(urls[0], connection)
    assert sum(is_open(connection) for connection in many) == KEPT_PER_PEER
    it.keep({urls[1]})
    assert all(not is_open(connection) for connection in many)
    late, _ = it.take(urls[2])
    it.close()
    it.give(urls[2], late)
    assert not is_open(late)


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_peer_that_sends_a_little_now_and_then_is_given_up(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PART_S", 0.2)
    given_up = threading.Event()

    def drip(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            if part == "body":
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not given_up.wait(0.02):
                sock.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        dripping = threading.Thread(target=drip, args=(listener,))
        dripping.start()
        it, _ = Connections(0.1).take(f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            it.ask("GET", "/", {})
            with pytest.raises(TimeoutError):
                it.read_into(memoryview(bytearray(it.head().length)))
        finally:
            given_up.set()
            dripping.join()
            it.close()
