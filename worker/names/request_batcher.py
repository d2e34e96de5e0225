"""Batches of requests: the requests of one turn of the event loop are sent in one call. While
`most_calls` calls are in flight, further requests wait. Equal requests share a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from cachefs.core.errors import CacheFSError, Unreachable

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")

MAX_OPEN: Final = 20_000  # requests of one gatherer without a reply


class RequestBatcher(Generic[Q, A]):
    """A batcher of requests. `ask(requests)` returns the replies in order, with an error in place
    of a reply, or raises an error for all. All methods belong to one event loop."""

    def __init__(
        self,
        ask: Callable[[Sequence[Q]], Awaitable[Sequence[A | CacheFSError]]],
        *,
        most_items: int,
        most_calls: int,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._ask = ask
        self._most_items = most_items
        self._most_calls = most_calls
        self._on_idle = on_idle
        self._open: dict[Q, asyncio.Future[A]] = {}
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._closed = False
        self._count = 0  # requests without a reply, including forgotten ones

    async def get(self, request: Q) -> A:
        """Returns the reply. Raises what `ask` raises, and Unreachable if `MAX_OPEN` requests wait.
        Cancellation leaves the call running for other callers."""
        return await asyncio.shield(self._future(request))

    def forget(self, request: Q) -> None:
        """Makes later `get`s send a new request, even if an equal one is in flight."""
        future = self._open.get(request)
        if future is not None and all(request != waiting for waiting, _ in self._waiting):
            del self._open[request]

    def forget_all(self) -> None:
        waiting = dict(self._waiting)
        self._open = {request: f for request, f in self._open.items() if request in waiting}

    async def close(self) -> None:
        """Cancels the calls in flight and fails all waiting `get`s with Unreachable. Idempotent."""
        self._closed = True
        calls = [*self._calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for _, future in self._waiting:
            self._settle(future, _ending())
        self._waiting.clear()
        self._open.clear()

    def _future(self, request: Q) -> asyncio.Future[A]:
        future = self._open.get(request)
        if future is not None:
            return future
        if self._closed:
            raise _ending()
        if self._count >= MAX_OPEN:
            raise Unreachable("too many requests wait for the master")
        loop = asyncio.get_running_loop()
        future = self._open[request] = loop.create_future()
        self._waiting.append((request, future))
        self._count += 1
        if not self._scheduled and len(self._calls) < self._most_calls:
            self._scheduled = True
            loop.call_soon(self._send)
        return future

    def _send(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._calls) < self._most_calls and not self._closed:
            batch = self._waiting[: self._most_items]
            del self._waiting[: self._most_items]
            call = asyncio.get_running_loop().create_task(self._run(batch))
            self._calls.add(call)
            call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._send()
        if not self._calls and not self._waiting:
            self._on_idle()

    async def _run(self, batch: list[tuple[Q, asyncio.Future[A]]]) -> None:
        replies: Sequence[A | CacheFSError]
        try:
            replies = await self._ask([request for request, _ in batch])
        except CacheFSError as err:
            replies = [err] * len(batch)
        except BaseException:
            for request, future in batch:
                self._leave(request, future)
                self._settle(future, _ending())
            raise
        for (request, future), reply in zip(batch, replies, strict=True):
            self._leave(request, future)
            self._settle(future, reply)

    def _leave(self, request: Q, future: asyncio.Future[A]) -> None:
        self._count -= 1
        if self._open.get(request) is future:
            del self._open[request]

    def _settle(self, future: asyncio.Future[A], reply: A | CacheFSError) -> None:
        if future.done():
            return
        if isinstance(reply, CacheFSError):
            future.set_exception(reply)
            future.exception()  # marks it as retrieved: all waiters may have been cancelled
        else:
            future.set_result(reply)


def _ending() -> CacheFSError:
    return Unreachable("this node is ending")
