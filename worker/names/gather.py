"""Questions gathered into batches: those of one turn of the event loop go in one call, and those
that come while enough calls are under way wait for the next. Equal questions share an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from cachefs.core.errors import CacheFSError, Unreachable

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")

MAX_OPEN: Final = 20_000  # questions of one gatherer that wait for an answer


class Gather(Generic[Q, A]):
    """`ask(questions)` answers in order, an error in an answer's place or raised for all. Calls of
    `get` belong to one event loop; `close` ends what is under way."""

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
        self._count = 0  # questions without an answer, also those that were forgotten

    async def get(self, question: Q) -> A:
        """Raises what `ask` does; Unreachable where too many wait. Cancelled: the call goes on for
        others."""
        return await asyncio.shield(self._future(question))

    def forget(self, question: Q) -> None:
        """Who asks from now on gets a newer answer than that of a call under way."""
        future = self._open.get(question)
        if future is not None and all(question != waiting for waiting, _ in self._waiting):
            del self._open[question]

    def forget_all(self) -> None:
        waiting = dict(self._waiting)
        self._open = {question: f for question, f in self._open.items() if question in waiting}

    async def close(self) -> None:
        """Everybody who waits gets Unreachable. Idempotent."""
        self._closed = True
        calls = [*self._calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for _, future in self._waiting:
            self._settle(future, _ending())
        self._waiting.clear()
        self._open.clear()

    def _future(self, question: Q) -> asyncio.Future[A]:
        future = self._open.get(question)
        if future is not None:
            return future
        if self._closed:
            raise _ending()
        if self._count >= MAX_OPEN:
            raise Unreachable("too many questions wait for the master")
        loop = asyncio.get_running_loop()
        future = self._open[question] = loop.create_future()
        self._waiting.append((question, future))
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
        answers: Sequence[A | CacheFSError]
        try:
            answers = await self._ask([question for question, _ in batch])
        except CacheFSError as err:
            answers = [err] * len(batch)
        except BaseException:
            for question, future in batch:
                self._leave(question, future)
                self._settle(future, _ending())
            raise
        for (question, future), answer in zip(batch, answers, strict=True):
            self._leave(question, future)
            self._settle(future, answer)

    def _leave(self, question: Q, future: asyncio.Future[A]) -> None:
        self._count -= 1
        if self._open.get(question) is future:
            del self._open[question]

    def _settle(self, future: asyncio.Future[A], answer: A | CacheFSError) -> None:
        if future.done():
            return
        if isinstance(answer, CacheFSError):
            future.set_exception(answer)
            future.exception()  # nobody may be waiting any more
        else:
            future.set_result(answer)


def _ending() -> CacheFSError:
    return Unreachable("this node is ending")
