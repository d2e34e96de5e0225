"""The node's server as the file system sees it: typed answers, and another try when the connection
broke (every request of a file system that only reads may be made twice).
"""

from __future__ import annotations

import enum
import os
from typing import Final, Literal, Protocol, TypeVar

from cachefs.client.connection import ConnectionLost
from cachefs.client.published import PublishedDirs
from cachefs.client.sockets import close_fd
from cachefs.core import messages as m
from cachefs.core.errors import ProtocolError

# Each waits for the next connection, a bounded time. The server may be killed again and again while
# a request is under way; a request that itself ends the server must not be sent for ever.
TRIES: Final = 8


class Must(enum.Enum):
    """The answer of an `*_nowait` function that cannot answer at once: call the async one."""

    WAIT = enum.auto()


MUST_WAIT: Final = Must.WAIT
MustWait = Literal[Must.WAIT]

Reply = TypeVar("Reply", bound=m.Message)


class Caller(Protocol):
    """What the file system needs of `cachefs.client.connection.Connection`."""

    @property
    def epoch(self) -> int: ...
    @property
    def published(self) -> PublishedDirs: ...
    async def call(self, body: m.Message) -> tuple[m.Message, int | None]: ...
    def post(self, body: m.Message) -> None: ...


class Node:
    """Questions to the node's server."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    @property
    def epoch(self) -> int:
        return self.caller.epoch

    async def ask(self, body: m.Message, expected: type[Reply]) -> Reply:
        """The answer; a descriptor with it is closed. Raises the typed errors of `call`."""
        reply, fd = await self.ask_fd(body, expected)
        close_fd(fd)
        return reply

    async def ask_fd(self, body: m.Message, expected: type[Reply]) -> tuple[Reply, int | None]:
        """The answer and its descriptor, which the caller owns."""
        reply, fd, _ = await self.ask_in_epoch(body, expected)
        return reply, fd

    async def ask_in_epoch(
        self, body: m.Message, expected: type[Reply]
    ) -> tuple[Reply, int | None, int]:
        """As `ask_fd`, with the epoch of the connection that gave the answer."""
        for _ in range(TRIES - 1):
            epoch = self.epoch
            try:
                return *await self.ask_once(body, expected), epoch
            except ConnectionLost:
                continue
        epoch = self.epoch  # the last try raises ConnectionLost to the caller
        return *await self.ask_once(body, expected), epoch

    async def ask_once(self, body: m.Message, expected: type[Reply]) -> tuple[Reply, int | None]:
        """As `ask_fd`, raising ConnectionLost at the first loss."""
        reply, fd = await self.caller.call(body)
        if not isinstance(reply, expected):
            if fd is not None:
                os.close(fd)
            raise ProtocolError(f"unexpected {type(reply).__name__} to {type(body).__name__}")
        return reply, fd

    def post(self, body: m.Message) -> None:
        self.caller.post(body)
