"""What a sampler announced: after any number of restarts a server has exactly what is left."""

from __future__ import annotations

import random
from array import array

import pytest

from cachefs.core.errors import BadConfig, DeadlineExceeded, Unreachable, Unsupported
from cachefs.core.orders import Order, Share
from cachefs.trainers import announced, announcer
from cachefs.trainers.announced import AnnouncedFunction, AnnouncedList
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.sampler import OrderSampler

SEEDS = range(20261125, 20261125 + 30)


class Server:
    """A route to a server that has one order, as the real one checks its pieces."""

    def __init__(self, takes_functions: bool = True) -> None:
        self.takes_functions = takes_functions
        self.is_over = False
        self.inos: list[int] = []
        self.total = -1
        self.shares: list[Share] = []
        self.error: Exception | None = None
        self.asked = 0

    def function(self, name: str, order: Order, share: Share, span: int) -> None:
        self._check()
        self.shares.append(share)

    def part(self, name: str, first: int, inos: array[int], total: int, span: int) -> None:
        self._check()
        if first and (first != len(self.inos) or total != self.total):
            raise BadConfig("a part that does not continue the list")
        self.inos = [*self.inos[:first], *inos]
        self.total = total
        assert len(self.inos) <= total

    def has(self, name: str) -> bool:
        self.asked += 1
        self._check()
        return self.total >= 0 or bool(self.shares)

    def close(self, name: str) -> None:
        self.restart()

    def restart(self) -> None:
        self.inos, self.total, self.shares = [], -1, []

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("seed", SEEDS)
def test_a_list_is_announced_again_from_what_was_consumed(seed: int) -> None:
    draw = random.Random(seed)
    places = list(range(1000, 1000 + draw.randint(1, 60)))
    order, server, added, consumed = AnnouncedList(len(places), 0), Server(), 0, 0
    begins_at = 0
    while added < len(places) or consumed < len(places):
        step = draw.randint(1, 9)
        order.add(places[added : added + step])
        added = min(len(places), added + step)
        if draw.random() < 0.3:
            server.restart()
            order.begin_again()
            begins_at = consumed
        order.send(server, "o")
        if server.total >= 0:
            assert server.inos == places[begins_at:added]
            assert server.total == len(places) - begins_at
        consumed = draw.randint(consumed, added)
        order.consume(consumed)
        assert order.left == len(places) - consumed


def test_a_list_that_nobody_consumes_keeps_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announced, "MOST_KEPT", 10)
    order, server = AnnouncedList(100, 0), Server()
    for first in range(0, 100, 4):
        order.add(range(first, first + 4))
        order.send(server, "o")
    assert server.inos == [*range(100)]
    assert len(order._kept) == 10
    order.begin_again()
    server.restart()
    order.send(server, "o")
    assert server.inos == [*range(90, 100)]


def test_a_function_is_announced_again_from_what_was_consumed() -> None:
    order, server = AnnouncedFunction(Order(100, 7, 0), Share(1, 3, 10), 4), Server()
    order.send(server, "o")
    order.send(server, "o")
    order.consume(5)
    assert order.left == 25
    order.begin_again()
    order.send(server, "o")
    assert server.shares == [Share(1, 3, 10), Share(1, 3, 25)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server of every sampler, which requests at once whether it has the order."""
    made = Server()
    monkeypatch.setattr(announcer, "CHECK_S", 0.0)
    monkeypatch.setattr(announcer, "find_route", lambda *_: made)
    return made


def drawn(sampler: OrderSampler, server: Server, lost_at: int) -> list[int]:
    found = []
    for sample in sampler:
        if len(found) == lost_at:
            server.restart()
        found.append(sample)
        sampler.advance(1)
    return found


@pytest.mark.parametrize("takes_functions", [True, False])
def test_a_lost_order_is_announced_again_and_no_sample_is_lost(
    manifest: Manifest, server: Server, takes_functions: bool
) -> None:
    server.takes_functions = takes_functions
    expected = [*Order(25, 7, 0).indices(range(25))]
    sampler = OrderSampler(manifest, seed=7)
    assert drawn(sampler, server, lost_at=10) == expected
    if takes_functions:
        assert server.shares == [Share(0, 1, 11)]
    else:
        assert server.inos == [manifest.ino(sample) for sample in expected[11:]]


def test_what_loader_processes_may_have_read_is_not_announced_again(
    manifest: Manifest, server: Server
) -> None:
    sampler = OrderSampler(manifest, seed=7)
    sampler.use_batches(1, span=5)
    drawn(sampler, server, lost_at=20)
    assert server.shares == []


def test_a_server_that_fails_is_reported_once_and_requested_again(
    manifest: Manifest, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.error = Unreachable("the server has ended")
    turn = iter(sampler := OrderSampler(manifest, seed=7))
    for _ in range(5):
        next(turn)
        sampler.advance(1)
    assert len(caplog.records) == 1
    server.error = None
    next(turn)
    sampler.advance(1)
    assert server.shares == [Share(0, 1, 6)]


def test_a_server_that_hangs_is_asked_less_and_less_often(
    manifest: Manifest, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each batch would wait for it. It keeps the order."""
    now = [0.0]
    monkeypatch.setattr(announcer, "CHECK_S", 1.0)
    monkeypatch.setattr(announcer.time, "monotonic", lambda: now[0])
    sampler = OrderSampler(manifest, seed=7)
    turn = iter(sampler)
    next(turn)
    server.error = DeadlineExceeded("no answer from the server")
    for _ in range(1000):  # half a second each
        now[0] += 0.5
        sampler.advance(0)
    assert server.asked <= 15
    server.error = None
    before = server.asked
    for _ in range(200):
        now[0] += 0.5
        sampler.advance(0)
    assert server.asked > before
    assert server.shares == [Share(0, 1, 0)]


def test_a_mount_that_takes_no_announcements_is_no_warning(
    manifest: Manifest, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.error = Unsupported("no announcements")
    assert len([*OrderSampler(manifest)]) == 25
    assert not caplog.records
