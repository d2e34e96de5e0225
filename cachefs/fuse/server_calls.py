"""Requests of the file system to the node's server: typed replies, and a retry when the connection
breaks. The file system only reads, so a repeated request is harmless."""

from __future__ import annotations

import enum
import os
from typing import Final, Literal, Protocol, TypeVar

from cachefs.client.connection import ConnectionLost
from cachefs.client.published import PublishedDirs
from cachefs.client.sockets import close_fd
from cachefs.core import messages as m
from cachefs.core.errors import ProtocolError

# Each waits a bounded time for the next connection. The server may be killed repeatedly while a
# request is in flight; a request that itself crashes the server must not be retried for ever.
TRIES: Final = 8


class Must(enum.Enum):
    """The result of an `*_nowait` function that would have to wait: call the async one."""

    WAIT = enum.auto()


MUST_WAIT: Final = Must.WAIT
MustWait = Literal[Must.WAIT]

Reply = TypeVar("Reply", bound=m.Message)


class Caller(Protocol):
    """The part of `cachefs.client.connection.Connection` that the file system calls."""

    @property
    def epoch(self) -> int: ...
    @property
    def published(self) -> PublishedDirs: ...
    async def call(self, body: m.Message) -> tuple[m.Message, int | None]: ...
    def post(self, body: m.Message) -> None: ...


class ServerCalls:
    """Sends requests to the node's server."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    @property
    def epoch(self) -> int:
        return self.caller.epoch

    async def ask(self, body: m.Message, expected: type[Reply]) -> Reply:
        """Returns the reply; closes a descriptor in it. Raises the typed errors of `call`."""
        reply, fd = await self.request_fd(body, expected)
        close_fd(fd)
        return reply

    async def request_fd(self, body: m.Message, expected: type[Reply]) -> tuple[Reply, int | None]:
        """Returns the reply and its descriptor, which the caller owns."""
        reply, fd, _ = await self.request_in_epoch(body, expected)
        return reply, fd

    async def request_in_epoch(
        self, body: m.Message, expected: type[Reply]
    ) -> tuple[Reply, int | None, int]:
        """Returns the same as `request_fd`, and the epoch of the connection that sent the reply."""
        for _ in range(TRIES - 1):
            epoch = self.epoch
            try:
                return *await self.request_once(body, expected), epoch
            except ConnectionLost:
                continue
        epoch = self.epoch  # the last try raises ConnectionLost to the caller
        return *await self.request_once(body, expected), epoch

    async def request_once(
        self, body: m.Message, expected: type[Reply]
    ) -> tuple[Reply, int | None]:
        """Returns the same as `request_fd`, but raises ConnectionLost at the first loss."""
        reply, fd = await self.caller.call(body)
        if not isinstance(reply, expected):
            if fd is not None:
                os.close(fd)
            raise ProtocolError(f"unexpected {type(reply).__name__} to {type(body).__name__}")
        return reply, fd

    def post(self, body: m.Message) -> None:
        self.caller.post(body)
