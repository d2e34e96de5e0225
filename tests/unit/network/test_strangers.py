"""Connections that have shown no token: which of them are closed, and when."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from cachefs.network import unauthenticated
from cachefs.network.unauthenticated import UnauthenticatedConnections


class Transport:
    """Remembers that it was closed."""

    def __init__(self, address: str) -> None:
        self.closed = False
        self._address = address

    def get_extra_info(self, name: str) -> Any:
        return {"peername": (self._address, 5)}[name]

    def abort(self) -> None:
        self.closed = True


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in an event loop."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def came(book: UnauthenticatedConnections, *addresses: str) -> list[Transport]:
    made = [Transport(address) for address in addresses]
    for transport in made:
        book.came(transport, cast(asyncio.Transport, transport))
    return made


def closed(transports: list[Transport]) -> list[bool]:
    return [one.closed for one in transports]


@in_loop
async def test_the_oldest_of_an_address_makes_room() -> None:
    book = UnauthenticatedConnections(8)
    other, *four = came(book, "127.0.0.2", *["127.0.0.1"] * 4)
    (newest,) = came(book, "127.0.0.1")
    assert closed(four) == [True, False, False, False]
    assert not other.closed
    assert not newest.closed
    assert len(book) == 5


@in_loop
async def test_a_caller_that_is_known_does_not_count() -> None:
    book = UnauthenticatedConnections(4)
    known = came(book, *["127.0.0.1"] * 2)
    for one in known:
        book.forget(one)
        book.forget(one)
    later = came(book, *["127.0.0.1"] * 2)
    assert not any(closed(known + later))
    book.close_oldest()
    assert closed(known + later) == [False, False, True, False]


@in_loop
async def test_addresses_of_one_network_count_together() -> None:
    book = UnauthenticatedConnections(4)
    near = came(book, "2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1")
    assert closed(near) == [True, False, False, False]
    own = came(book, "::1", "::1", "::ffff:10.0.0.1", "::ffff:10.0.0.2", "no address")
    assert not any(closed(own))


@in_loop
async def test_a_stranger_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unauthenticated, "UNAUTHENTICATED_TIMEOUT_S", 0.01)
    book = UnauthenticatedConnections(4)
    stays, known = came(book, "127.0.0.1", "127.0.0.1")
    book.forget(known)
    async with asyncio.timeout(10):
        while not stays.closed:
            await asyncio.sleep(0)
    assert not known.closed
    assert len(book) == 0
    book.close_oldest()
