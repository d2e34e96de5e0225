"""Whose an order is that a program announces by ioctl."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any

from cachefs.core import messages as m
from cachefs.core.model import NamespaceId
from cachefs.core.order_ioctl import END, PIECE, ListPiece
from cachefs.fuse.orders import NOT_NAMED, Orders, user_of


class Calls:
    """Requests to the server."""

    def __init__(self) -> None:
        self.asked: list[m.Message] = []

    async def ask(self, body: m.Message, expected: type[m.Message]) -> m.Message:
        self.asked.append(body)
        return m.Done()


def test_the_user_of_a_request_is_that_of_its_caller() -> None:
    assert user_of(1000, os.getpid()) == 1000
    assert user_of(NOT_NAMED, os.getpid()) == os.geteuid()
    assert user_of(NOT_NAMED, 0) == NOT_NAMED


def test_users_have_names_of_their_own() -> None:
    calls: Any = Calls()
    orders = Orders(calls, lambda: NamespaceId(b"n" * 16))
    piece = bytes(ListPiece("train", 0, 1, 0, 8, 0, bytes(8)).encode())
    for user in (7, 8):
        done: Any = orders.answer(PIECE, user, piece)
        asyncio.run(_awaited(done))
    asyncio.run(_awaited(orders.answer(END, 8, ListPiece("train").header())))
    assert [(one.name, getattr(one, "user", None)) for one in calls.asked] == [
        ("7:train", 7), ("8:train", 8), ("8:train", None),
    ]  # fmt: skip


async def _awaited(done: bytes | Awaitable[bytes]) -> bytes:
    return done if isinstance(done, bytes) else await done
