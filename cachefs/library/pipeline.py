"""Many requests of one exchange at once, each followed by others until its item is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cachefs.core import messages as m
from cachefs.library.node_session import reply_deadline
from cachefs.library.shared_socket import Exchange, Reply

IN_FLIGHT: Final = 256

Take = Callable[[int, Reply], "m.Message | None"]
"""Handles the reply to an item's request. Returns the item's next request; None: it is done."""


class Pipeline:
    """The items of one run. Each item has at most one request in flight."""

    def __init__(self, exchange: Exchange, take: Take, most: int = IN_FLIGHT) -> None:
        """`most`: requests in flight."""
        self._exchange = exchange
        self._take = take
        self._most = most
        self._items: dict[int, int] = {}  # request -> item

    def run(self, items: Iterable[tuple[int, m.Message]]) -> None:
        """Sends the first request of each item, and ends when all items are done. Raises
        SocketLost, and DeadlineExceeded when no reply arrives for `CALL_DEADLINE_S`; then requests
        are still in flight, which the end of the exchange cancels."""
        for item, body in items:
            while not self._has_room():
                self._step()
            self._send(item, body)
        while self._items:
            self._step()

    def _has_room(self) -> bool:
        if not self._items:
            return True  # a run with one request in flight always proceeds
        return len(self._items) < self._most and self._exchange.shared.has_room()

    def _send(self, item: int, body: m.Message) -> None:
        self._items[self._exchange.send(body, reply_deadline())] = item

    def _step(self) -> None:
        reply = self._exchange.next(reply_deadline())
        item = self._items.pop(reply.id)
        body = self._take(item, reply)
        if body is not None:
            self._send(item, body)
