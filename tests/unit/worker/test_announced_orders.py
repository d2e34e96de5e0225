"""Announced orders: what comes next is requested once, in a window, and whatever is announced, no
more than a window is requested for nothing."""

from __future__ import annotations

import functools
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefs.core.errors import BadConfig, NotFound
from cachefs.core.model import NamespaceId
from cachefs.core.order_messages import (
    IDLE_S,
    MOST_ENTRIES,
    MOST_ORDERS,
    USERS,
    AnnounceOrder,
)
from cachefs.core.orders import Order, Share
from tests.services.examples import examples
from worker.prefetch import order_book
from worker.prefetch.announced_order import LEAD_FILES, AnnouncedOrder
from worker.prefetch.order_book import OrderBook, OrderId
from worker.prefetch.order_entries import PIECE_BYTES, FunctionEntries, InoList

NAMESPACE = NamespaceId(b"n" * 16)
SIZE = 1000
ME, OTHER = "me", "other"


def piece(
    inos: list[int], first: int = 0, total: int = -1, name: str = "o", **more: Any
) -> AnnounceOrder:
    data = b"".join(ino.to_bytes(8, "little") for ino in inos)
    total = len(inos) if total < 0 else total
    return AnnounceOrder(NAMESPACE, name, first, data, total, **more)


def of(inos: list[int], span: int = 0) -> AnnouncedOrder:
    return AnnouncedOrder(InoList(piece(inos)), span, 0.0)


class Ahead:
    """Executes an order without waiting. `here`: what was brought and not released."""

    def __init__(self, order: AnnouncedOrder) -> None:
        self.order = order
        self.brought: list[int] = []
        self.here: set[int] = set()
        self.released: list[int] = []

    def bring(self, most: int = 1 << 30) -> list[int]:
        found = []
        while len(found) < most and (wanted := self.order.next()) is not None:
            place, ino = wanted
            self.here.add(place)
            self.order.begun(place, SIZE, functools.partial(self._release, place))
            self.order.arrived(place)
            found.append(ino)
        self.brought += found
        self.order.check_invariants()
        return found

    def _release(self, place: int, opened: bool) -> None:
        self.here.remove(place)
        if not opened:
            self.released.append(place)


def test_files_are_requested_in_order_up_to_the_lead() -> None:
    inos = [*range(5000, 2000, -1)]
    ahead = Ahead(of(inos))
    assert ahead.bring() == inos[:LEAD_FILES]
    assert ahead.bring() == []
    assert ahead.order.opened(inos[0], 1.0)
    assert ahead.bring() == [inos[LEAD_FILES]]


def test_each_file_is_requested_once_in_a_whole_epoch() -> None:
    inos = [*range(1, 5001)]
    random.Random(1).shuffle(inos)
    ahead = Ahead(of(inos))
    for ino in inos:
        ahead.bring()
        assert ahead.order.opened(ino, 1.0)
    assert ahead.brought == inos
    assert ahead.order.is_over
    assert (ahead.order.late, ahead.order.requested) == (0, len(inos))
    assert ahead.released == []
    assert ahead.order.unread_bytes == 0


@pytest.mark.parametrize("loaders", [1, 3, 8])
def test_opens_out_of_order_within_the_span_are_expected(loaders: int) -> None:
    """Loader processes read a batch each."""
    batch, batches = 32, 60
    inos = [*range(1, 1 + batch * batches)]
    rng = random.Random(loaders)
    places = [[*range(b * batch, (b + 1) * batch)] for b in range(batches)]
    ahead = Ahead(of(inos, span=loaders * 2 * batch))
    queues: list[list[int]] = [[] for _ in range(loaders)]
    given_out = 0
    for _ in range(len(inos)):
        for queue in queues:
            if not queue and given_out < batches:
                queue += places[given_out]
                given_out += 1
        oldest = min(queue[0] for queue in queues if queue)
        near = [queue for queue in queues if queue and queue[0] < oldest + loaders * 2 * batch]
        ahead.bring()
        assert ahead.order.opened(inos[rng.choice(near).pop(0)], 1.0)
    assert sorted(ahead.brought) == inos
    assert ahead.order.is_over


def test_places_far_behind_are_skipped_and_released() -> None:
    inos = [*range(1, 101)]
    ahead = Ahead(of(inos, span=10))
    ahead.bring()
    assert ahead.order.opened(inos[49], 1.0)
    assert ahead.released == [*range(40)]
    assert not ahead.order.opened(inos[0], 1.0)
    assert ahead.order.opened(inos[45], 1.0)
    ahead.order.check_invariants()


def test_a_reader_that_overtakes_is_late_and_nothing_is_requested_twice() -> None:
    inos = [*range(1, 3001)]
    ahead = Ahead(of(inos, span=50))
    for ino in inos[:100]:
        assert ahead.order.opened(ino, 1.0)
    assert ahead.order.late == 100
    assert ahead.bring(20) == inos[100:120]


def test_duplicates_are_expected_as_often_as_they_are_listed() -> None:
    ahead = Ahead(of([7, 8, 7, 7]))
    ahead.bring()
    assert [ahead.order.opened(ino, 1.0) for ino in (7, 7, 8, 7, 7)] == [True] * 4 + [False]
    assert ahead.order.is_over


def test_a_refused_file_is_the_next_one() -> None:
    order = of([1, 2, 3])
    assert order.next() == (0, 1)
    order.refused(0)
    assert order.next() == (0, 1)
    order.refused(0)
    assert order.opened(1, 1.0)
    assert order.next() == (1, 2)


def test_what_is_lost_after_it_arrived_is_requested_again_and_a_failed_one_is_not() -> None:
    order = of([1, 2, 3])
    for _ in range(3):
        place, _ = order.next()  # type: ignore[misc]
        order.begun(place, SIZE, lambda opened: None)
    order.arrived(1)
    order.lost(0)
    order.lost(1)
    assert order.next() == (1, 2)
    assert order.next() is None
    order.check_invariants()


def test_a_wrong_order_requests_one_window() -> None:
    ahead = Ahead(of([*range(1, 10_000)], span=100))
    for ino in range(1_000_000, 1_002_000):
        ahead.bring()
        assert not ahead.order.opened(ino, 1.0)
    assert len(ahead.brought) == LEAD_FILES


def test_the_end_releases_what_was_not_read() -> None:
    ahead = Ahead(of([*range(1, 101)]))
    ahead.bring()
    ahead.order.opened(1, 1.0)
    ahead.order.end()
    ahead.order.end()
    assert ahead.released == [*range(1, 100)]
    assert ahead.order.next() is None


def test_entries_that_cannot_be_read_end_the_order() -> None:
    def read(index: int) -> int:
        if index == 3:
            raise OSError("the table became shorter")
        return 100 + index

    order = AnnouncedOrder(FunctionEntries(Order(10, 1, 1, "none"), Share(), read), 0, 0.0)
    assert [order.next() for _ in range(3)] == [(0, 100), (1, 101), (2, 102)]
    assert order.next() is None
    assert order.is_over


def test_a_function_has_the_files_of_one_rank() -> None:
    order, share = Order(100, 7, 3), Share(1, 3, 10)
    entries = FunctionEntries(order, share, lambda index: 1000 + index)
    expected = [1000 + index for index in order.indices(share.positions(100))]
    assert [entries.at(place) for place in range(entries.total)] == expected


# ---- lists in pieces ----


def test_a_list_in_pieces_of_both_widths() -> None:
    entries = InoList(piece([5, 6], 0, 5))
    offsets = b"".join(offset.to_bytes(4, "little") for offset in (7, 0, 9))
    entries.add(AnnounceOrder(NAMESPACE, "o", 2, offsets, 5, base=1 << 40, entry_bytes=4))
    assert [entries.at(place) for place in range(5)] == [
        5,
        6,
        (1 << 40) + 7,
        1 << 40,
        (1 << 40) + 9,
    ]
    assert entries.size_bytes == 2 * 8 + 3 * 4 + 2 * PIECE_BYTES


@pytest.mark.parametrize(
    "wrong",
    [
        piece([3], 1, 5),  # a gap or a repetition
        piece([3], 3, 5),
        piece([3], 2, 6),  # another length
        piece([3, 4, 5, 6], 2, 5),  # too many
        piece([], 2, 5),
        AnnounceOrder(NAMESPACE, "o", 2, bytes(9), 5),
        AnnounceOrder(NAMESPACE, "o", 2, bytes(8), 5, entry_bytes=2),
        AnnounceOrder(NAMESPACE, "o", 2, bytes(8 * (MOST_ENTRIES + 1)), 5),
    ],
)
def test_wrong_pieces_change_nothing(wrong: AnnounceOrder) -> None:
    book = OrderBook()
    book.add_piece(ME, piece([1, 2], 0, 5), 0.0)
    with pytest.raises(BadConfig):
        book.add_piece(ME, wrong, 0.0)
    book.add_piece(ME, piece([3, 4, 5], 2, 5), 0.0)
    assert book.state(ME, NAMESPACE, "o").total == 5


def test_pieces_are_requested_as_they_arrive() -> None:
    book = OrderBook()
    book.add_piece(ME, piece([1, 2], 0, 4), 0.0)
    ((_, order),) = book.live()
    assert [order.next(), order.next(), order.next()] == [(0, 1), (1, 2), None]
    for ino in (1, 2):
        book.opened(ME, NAMESPACE, ino, 1.0)
    book.add_piece(ME, piece([3, 4], 2, 4), 2.0)
    assert order.next() == (2, 3)


# ---- sessions ----


def test_a_new_list_with_the_same_name_replaces_the_order() -> None:
    book = OrderBook()
    book.add_piece(ME, piece([1, 2]), 0.0)
    book.add_piece(OTHER, piece([1, 2]), 0.0)
    book.add_piece(ME, piece([3, 4, 5]), 0.0)
    assert book.state(ME, NAMESPACE, "o").total == 3
    assert book.state(OTHER, NAMESPACE, "o").total == 2


def test_a_session_has_a_bounded_number_of_orders() -> None:
    book = OrderBook()
    for number in range(MOST_ORDERS):
        book.add_piece(ME, piece([1], name=str(number)), 0.0)
    book.add_piece(ME, piece([2], name="0"), 0.0)
    book.add_piece(OTHER, piece([2], name="0"), 0.0)
    with pytest.raises(BadConfig):
        book.add_piece(ME, piece([1], name="more"), 0.0)


def test_each_user_of_a_mount_has_orders_and_bytes_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All users together have those of four; a session of one user has all bytes."""
    book = OrderBook()
    for user in range(USERS):
        for number in range(MOST_ORDERS):
            book.add_piece(ME, piece([1], name=f"{user}:{number}", user=user), 0.0)
        with pytest.raises(BadConfig, match=f"{MOST_ORDERS} of them of this user"):
            book.add_piece(ME, piece([1], name=f"{user}:more", user=user), 0.0)
        book.add_piece(ME, piece([2], name=f"{user}:0", user=user), 0.0)
    with pytest.raises(BadConfig, match="0 of them of this user"):
        book.add_piece(ME, piece([1], name="9:0", user=9), 0.0)
    book.add_piece(OTHER, piece([1]), 0.0)
    book.end_session(ME)
    monkeypatch.setattr(order_book, "MOST_LIST_BYTES", 1000 * USERS)
    for user in range(USERS):
        book.add_piece(ME, piece([1, 2], 0, 999, name=f"{user}", user=user), 0.0)
        with pytest.raises(BadConfig, match="of this user"):
            book.add_piece(ME, piece([3] * 120, 2, 999, name=f"{user}", user=user), 0.0)
    book.add_piece(OTHER, piece([1] * 125 * USERS), 0.0)


def test_many_short_pieces_count_with_the_memory_that_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any reader of a mount may announce a list one inode number at a time."""
    monkeypatch.setattr(order_book, "MOST_LIST_BYTES", 1 << 20)
    book = OrderBook()

    def announce() -> None:
        for place in range(1 << 20):
            book.add_piece(ME, piece([1], place, 1 << 20), 0.0)

    tracemalloc.start()
    try:
        with pytest.raises(BadConfig, match="more than 1 MiB"):
            announce()
        assert 1 << 19 < tracemalloc.get_traced_memory()[0] < 2 << 20
    finally:
        tracemalloc.stop()


def test_opens_count_for_the_orders_of_their_session_first() -> None:
    book = OrderBook()
    book.add_piece(ME, piece([1, 2, 3]), 0.0)
    book.add_piece(OTHER, piece([3, 2, 4]), 0.0)
    assert book.opened(ME, NAMESPACE, 2, 1.0)
    assert book.state(OTHER, NAMESPACE, "o").position == 0
    assert book.opened(ME, NAMESPACE, 4, 1.0)
    assert book.state(OTHER, NAMESPACE, "o").position == 3
    assert not book.opened(ME, NAMESPACE, 9, 1.0)
    assert not book.opened(ME, NamespaceId(b"o" * 16), 1, 1.0)


def test_an_order_ends_with_its_epoch_its_session_and_after_a_while_without_an_open() -> None:
    book = OrderBook()
    for name in ("read", "ended", "idle", "left"):
        session = OTHER if name == "left" else ME
        book.add_piece(session, piece([ord(name[0])], name=name), 0.0)
    assert book.opened(ME, NAMESPACE, ord("r"), 1.0)
    book.end(ME, NAMESPACE, "ended")
    book.end_session(OTHER)
    assert book.state(ME, NAMESPACE, "idle").total == 1
    for session, name in ((ME, "read"), (ME, "ended"), (OTHER, "left")):
        with pytest.raises(NotFound):
            book.state(session, NAMESPACE, name)
    book.expire(IDLE_S - 1.0)
    assert len(book) == 1
    book.expire(IDLE_S)
    assert not len(book)


def test_a_function_gives_its_table_back() -> None:
    book, closed = OrderBook(), []
    for _ in range(2):
        entries = FunctionEntries(Order(5, 1, 1), Share(), lambda index: index)
        book.put_function(OrderId(ME, NAMESPACE, "f"), entries, 0, 0.0, lambda: closed.append(1))
    assert len(closed) == 1
    book.close()
    assert len(closed) == 2


# ---- whatever happens ----


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 1 << 32))
def test_random_histories_keep_the_window(seed: int) -> None:
    """Several readers of one order, some of whom skip, stop or read something else; files that
    vanish, fail, are refused and are lost."""
    rng = random.Random(seed)
    inos = [rng.randrange(1, 400) for _ in range(rng.randrange(1, 3000))]
    span = rng.choice([1, 16, 200])
    order = of(inos, span)
    here: dict[int, int] = {}  # place -> ino
    asked = dict.fromkeys(range(len(inos)), 0)
    at = 0

    def begin() -> None:
        wanted = order.next()
        if wanted is None:
            return
        place, ino = wanted
        assert inos[place] == ino
        chance = rng.random()
        if chance < 0.05:
            return  # it vanished
        if chance < 0.1:
            return order.refused(place)
        asked[place] += 1
        here[place] = ino
        order.begun(place, SIZE, lambda opened: here.pop(place))
        if chance < 0.9:
            order.arrived(place)

    for _ in range(rng.randrange(1, 3000)):
        for _ in range(rng.randrange(3)):
            begin()
        chance = rng.random()
        if chance < 0.6:
            at = min(at + 1, len(inos) - 1)
            order.opened(inos[max(0, at - rng.randrange(span))], 1.0)
        elif chance < 0.65:
            order.opened(rng.randrange(1000), 1.0)
        elif chance < 0.66:
            at = rng.randrange(len(inos))
        elif chance < 0.68 and here:
            place = rng.choice([*here])
            if place in order._unread and order._unread[place].has_arrived:
                asked[place] -= 1  # it may be asked for once more
            if place in order._unread:
                order.lost(place)
                del here[place]
        order.check_invariants()
        assert here.keys() == order._unread.keys()
        assert len(here) <= LEAD_FILES + span
    assert max(asked.values()) <= 1, f"seed {seed}"
    order.end()
    assert not here
