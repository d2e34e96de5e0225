"""Threads that share a connection to a scripted server."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator

import pytest

from cachefs.core import messages as m
from cachefs.core.errors import DeadlineExceeded
from cachefs.core.owned_fd import OwnedFd
from cachefs.library import shared_socket
from cachefs.library.shared_socket import Exchange, SharedSocket, SocketLost
from tests.services.descriptors import no_descriptor_left

LIMIT_S = 20.0


class Peer:
    """The server's end of the socket, and the events that the client's end has taken."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(LIMIT_S)
        self.events: list[m.Message] = []
        self.shared = SharedSocket(ours, 1, self._event)

    def _event(self, event: m.Message, _: OwnedFd | None) -> None:
        self.events.append(event)

    def take(self) -> m.Frame:
        return m.decode(self.sock.recv(m.MAX_FRAME_BYTES))

    def give(self, id: int, body: m.Message, fd: int | None = None) -> None:
        fds = [] if fd is None else [fd]
        socket.send_fds(self.sock, [m.encode(id, body)], fds)

    def close(self) -> None:
        self.sock.close()
        self.shared.lose("the test ends")


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def soon() -> float:
    return time.monotonic() + LIMIT_S


def test_replies_in_any_order(peer: Peer) -> None:
    with Exchange(peer.shared) as exchange:
        ids = [exchange.send(m.Release(n), soon()) for n in range(3)]
        for id in reversed(ids):
            assert peer.take().id in ids
            peer.give(id, m.Done())
        assert [exchange.next(soon()).id for _ in ids] == ids[::-1]


def test_many_threads_get_their_own_replies(peer: Peer) -> None:
    """A reply reaches its thread, whichever thread reads the socket."""

    def ask(number: int) -> bool:
        with Exchange(peer.shared) as exchange:
            id = exchange.send(m.Release(number), soon())
            reply = exchange.next(soon())
            return reply.id == id and reply.body == m.Release(number + 1)

    def serve() -> None:
        waiting: list[m.Frame] = []
        for _ in range(400):
            waiting.append(peer.take())
            if len(waiting) == 8 or not peer.shared._followers:
                for frame in reversed(waiting):
                    assert isinstance(frame.body, m.Release)
                    peer.give(frame.id, m.Release(frame.body.handle + 1))
                waiting.clear()
        for frame in waiting:
            assert isinstance(frame.body, m.Release)
            peer.give(frame.id, m.Release(frame.body.handle + 1))

    with concurrent.futures.ThreadPoolExecutor(17) as pool:
        server = pool.submit(serve)
        assert all(pool.map(ask, range(400), timeout=LIMIT_S))
        server.result(LIMIT_S)


def test_descriptors_of_a_slow_thread_do_not_pile_up(peer: Peer) -> None:
    """The thread that reads for all leaves frames in the socket until the others took theirs."""
    count = 3 * shared_socket.MOST_QUEUED_FDS
    slow, quick = Exchange(peer.shared), Exchange(peer.shared)
    ids = []
    for number in range(count):
        ids.append(slow.send(m.Release(number), soon()))
        peer.take()
    last = quick.send(m.Done(), soon())

    def serve() -> None:
        fd = os.open(os.devnull, os.O_RDONLY)
        for id in ids:
            peer.give(id, m.Opened(0, 1, True, True), fd)
        os.close(fd)
        peer.give(last, m.Done())

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        serving, reading = pool.submit(serve), pool.submit(quick.next, soon())
        for _ in ids:
            reply = slow.next(soon())
            assert len(slow.replies) < shared_socket.MOST_QUEUED_FDS
            assert reply.take() is not None
        assert reading.result(LIMIT_S).id == last
        serving.result(LIMIT_S)


def test_events_are_taken_without_a_wait(peer: Peer) -> None:
    event = m.TierState(True, 3)
    peer.give(0, event)
    peer.give(0, event)
    peer.shared.take_events()
    assert peer.events == [event, event]
    peer.shared.take_events()
    assert len(peer.events) == 2


def test_a_loss_reaches_every_thread(peer: Peer) -> None:
    def ask(number: int) -> str:
        with Exchange(peer.shared) as exchange:
            exchange.send(m.Release(number), soon())
            try:
                exchange.next(soon())
            except SocketLost as err:
                return err.cause
        return ""

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, number) for number in range(8)]
        for _ in asked:
            peer.take()
        peer.sock.close()
        causes = {one.result(LIMIT_S) for one in asked}
    assert causes == {"the connection to the server was lost: the server ended the connection"}
    with pytest.raises(SocketLost):
        Exchange(peer.shared).send(m.Done(), soon())


def test_a_late_reply_leaves_nothing_open(peer: Peer) -> None:
    """The request is cancelled; the descriptor of its reply is closed, its handle released."""
    with Exchange(peer.shared) as exchange:
        id = exchange.send(m.Done(), soon())
        with pytest.raises(DeadlineExceeded):
            exchange.next(time.monotonic() + 0.01)
    assert [peer.take().body for _ in range(2)] == [m.Done(), m.Cancel(id)]
    reading, writing = os.pipe()
    peer.give(id, m.Opened(77, 5, False, True), writing)
    os.close(writing)
    peer.shared.take_events()
    assert peer.take().body == m.Release(77)
    assert os.read(reading, 1) == b"", "no copy of the descriptor is open"
    os.close(reading)


def test_a_reply_that_lost_its_descriptor_is_an_error_of_its_request(peer: Peer) -> None:
    """The open is ended at the server, and the connection stays."""
    opened = m.Opened(77, 5, False, True)
    reading, writing = os.pipe()
    with Exchange(peer.shared) as exchange:
        first, second = (exchange.send(m.Release(n), soon()) for n in range(2))
        peer.give(first, opened, writing)
        peer.give(second, m.Done())
        peer.give(0, m.PublishedDirectory(1, True), writing)
        with no_descriptor_left():
            failed, other = (exchange.next(soon()) for _ in range(2))
            peer.shared.take_events()
        assert (failed.id, failed.fds, other.body) == (first, [], m.Done())
        assert isinstance(failed.body, m.Failure)
        assert m.error_of(failed.body).errno == errno.EMFILE
        assert [peer.take().body for _ in range(3)][-1] == m.Release(77)
        assert peer.events == [m.PublishedDirectory(1, True)]
        third = exchange.send(m.Done(), soon())
        assert peer.take().id == third
        peer.give(third, opened, writing)
        os.close(writing)
        reply = exchange.next(soon())
        assert reply.body == opened
        assert reply.take() is not None
    assert os.read(reading, 1) == b"", "no copy of the descriptor is open"
    os.close(reading)


def test_a_release_for_which_the_socket_is_full_is_sent_by_the_next_call(peer: Peer) -> None:
    """Else the server would keep the file open until the program ends."""
    sock, filled = peer.shared._sock, 0
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(m.encode(0, m.Done()))
            filled += 1
    peer.shared.post(m.Release(7))
    for _ in range(filled):
        assert peer.take().body == m.Done()
    peer.shared.take_events()
    peer.sock.settimeout(2.0)
    assert peer.take().body == m.Release(7)


def test_a_silent_server_is_probed_and_then_given_up(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_socket, "PING_S", 0.02)
    monkeypatch.setattr(shared_socket, "SILENCE_S", 0.2)
    with Exchange(peer.shared) as exchange:
        exchange.send(m.Release(1), soon())
        with pytest.raises(SocketLost, match="silent"):
            exchange.next(soon())
    assert peer.take().body == m.Release(1)
    assert peer.take().body == m.Done()


def test_an_abandoned_copy_leaves_the_other_connected(peer: Peer) -> None:
    """As in a forked child: its copy of the socket is closed, and the parent's works."""
    pid = os.fork()
    if pid == 0:
        peer.shared.abandon()
        os._exit(0 if peer.shared.lost else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with Exchange(peer.shared) as exchange:
        id = exchange.send(m.Done(), soon())
        peer.give(id, m.Done())
        assert exchange.next(soon()).body == m.Done()


def test_a_finaliser_inside_of_a_call_does_not_wait(peer: Peer) -> None:
    """It may run while its thread holds the lock; what it posts is sent by the next call."""
    with peer.shared._lock:
        peer.shared.post(m.Release(5))
    peer.shared.take_events()
    assert peer.take().body == m.Release(5)
