"""Workers answer in turn, also when handlers wait, fail, are interrupted, or the session ends."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from cachefs.core.errors import Interrupted
from cachefs.fuse.runs import RunningRequest
from cachefs.fuse.workers import (
    LOOKS,
    REFUSALS_PER_TRIAL,
    REQUESTS_PER_ROUND,
    AdaptiveSpin,
    TrioForPyfuse3,
    Workers,
)


class Pyfuse3:
    """The session loop as pyfuse3 has it, on one byte per request; b"w" waits for an answer, b"t"
    for work that needs a task, b"e" fails, b"x" ends the session."""

    def __init__(self, sock: socket.socket) -> None:
        self.its = Workers()
        self.trio = TrioForPyfuse3(self.its)
        self.lock = self.trio.Lock()
        self.sock = sock
        self.gate = trio.Event()
        self.waiting: list[RunningRequest] = []
        self.abandoned = 0
        self.answered: list[bytes] = []
        self.readers = self.workers = 0
        self.exited = False

    async def main(self) -> None:
        async with self.trio.open_nursery() as nursery:
            self.workers = 1
            nursery.start_soon(self.worker, nursery, name="worker")

    async def readable(self) -> bool:
        self.readers += 1
        try:
            async with self.lock:
                if self.exited:
                    return False
                await self.trio.lowlevel.wait_readable(self.sock.fileno())
        except trio.ClosedResourceError:
            return False
        finally:
            self.readers -= 1
        return True

    async def worker(self, nursery: Workers) -> None:
        while not self.exited:
            if self.readers > 64 or not await self.readable():
                break
            request = self.sock.recv(1)
            if not self.readers and self.workers < 30:
                self.workers += 1
                nursery.start_soon(self.worker, nursery, name="worker")
            if request == b"x":
                self.exited = True
                break
            await self.handle(request)
        self.workers -= 1

    async def handle(self, request: bytes) -> None:
        assert self.its.running is not None
        try:
            if request == b"w":
                self.waiting.append(self.its.running)
                request = await self.its.new(self.abandon)
            elif request == b"t":
                self.waiting.append(self.its.running)
                await self.its.in_task(self.gate.wait)
            elif request == b"e":
                raise KeyError(request)
        except Interrupted:
            request = b"I"
        self.answered.append(request)

    def abandon(self) -> None:
        self.abandoned += 1

    def answer_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for worker in waiting:
            assert worker.wait is not None
            worker.wait.resume(b"W")


def run(test: Callable[[Pyfuse3, socket.socket], Awaitable[None]]) -> None:
    async def main() -> None:
        kernel, ours = socket.socketpair()
        ours.setblocking(False)
        with kernel, ours, trio.fail_after(10):
            session = Pyfuse3(ours)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.main)
                await test(session, kernel)
                kernel.send(b"x" * 40)
            assert session.workers == 0

    trio.run(main)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


def test_few_workers_answer_what_can_be_answered_at_once() -> None:
    async def test(session: Pyfuse3, kernel: socket.socket) -> None:
        for _ in range(50):
            kernel.send(b"aaa")
        await until(lambda: len(session.answered) == 150)
        assert session.workers <= REQUESTS_PER_ROUND + 1, "started before they could run, parked"

    run(test)


@pytest.mark.parametrize("waiting", [1, 20])
def test_handlers_that_wait_hold_nobody_up(waiting: int) -> None:
    async def test(session: Pyfuse3, kernel: socket.socket) -> None:
        kernel.send(b"w" * waiting + b"a")
        await until(lambda: session.answered == [b"a"])
        session.answer_all()
        assert session.answered == [b"a", *[b"W"] * waiting], "by whoever brings the answer"
        kernel.send(b"b" * 10)
        await until(lambda: session.answered[-10:] == [b"b"] * 10)

    run(test)


def test_requests_wait_while_every_worker_does() -> None:
    async def test(session: Pyfuse3, kernel: socket.socket) -> None:
        kernel.send(b"w" * 30 + b"a")
        await until(lambda: len(session.waiting) == 30)
        await trio.testing.wait_all_tasks_blocked()
        assert session.answered == []
        session.answer_all()
        await until(lambda: session.answered[-1:] == [b"a"])

    run(test)


def test_work_that_needs_a_task() -> None:
    async def test(session: Pyfuse3, kernel: socket.socket) -> None:
        kernel.send(b"ta")
        await until(lambda: session.answered == [b"a"])
        session.gate.set()
        await until(lambda: session.answered == [b"a", b"t"])

    run(test)


@pytest.mark.parametrize("request_", [b"w", b"t"])
def test_a_wait_is_interrupted_at_once_and_only_once(request_: bytes) -> None:
    async def test(session: Pyfuse3, kernel: socket.socket) -> None:
        kernel.send(request_)
        await until(lambda: len(session.waiting) == 1)
        session.waiting.pop().interrupt(Interrupted("a signal"))
        assert session.answered == [b"I"]
        assert session.abandoned == (request_ == b"w")
        session.gate.set()
        kernel.send(b"a")
        await until(lambda: session.answered == [b"I", b"a"])

    run(test)


def test_what_escapes_from_a_worker_ends_the_session() -> None:
    async def main() -> None:
        kernel, ours = socket.socketpair()
        with kernel, ours, trio.fail_after(10):
            session = Pyfuse3(ours)
            kernel.send(b"we")
            with pytest.raises(KeyError):
                await session.main()
            assert session.abandoned == 1, "the one that waited is closed"

    trio.run(main)


def test_cancellation_closes_every_worker() -> None:
    async def test(session: Pyfuse3, kernel: socket.socket) -> None:
        kernel.send(b"wwta")
        await until(lambda: session.answered == [b"a"])

    async def main() -> None:
        kernel, ours = socket.socketpair()
        with kernel, ours, trio.fail_after(10):
            session = Pyfuse3(ours)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.main)
                await test(session, kernel)
                nursery.cancel_scope.cancel()
            assert session.abandoned == 2
            assert session.answered == [b"a"]

    trio.run(main)


def test_a_closed_descriptor_ends_the_session() -> None:
    async def main() -> None:
        kernel, ours = socket.socketpair()
        with kernel, ours, trio.fail_after(10):
            session = Pyfuse3(ours)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.main)
                await trio.testing.wait_all_tasks_blocked()
                session.trio.lowlevel.notify_closing(ours)

    trio.run(main)


def test_other_tasks_get_their_turn() -> None:
    """A caller that always asks on does not keep the rest of the process out."""

    async def test(session: Pyfuse3, kernel: socket.socket) -> None:
        kernel.send(b"a" * 1000)
        await until(lambda: bool(session.answered))
        before = len(session.answered)
        await trio.lowlevel.checkpoint()
        assert len(session.answered) - before <= 2 * REQUESTS_PER_ROUND

    run(test)


def test_looking_is_given_up_where_it_does_not_pay_and_tried_again() -> None:
    patience = AdaptiveSpin()
    for _ in range(20):
        patience.learn(found=False)
    assert patience.looks() == 1
    for _ in range(REFUSALS_PER_TRIAL):
        patience.learn(found=False)
    assert patience.looks() in (1, LOOKS)
    patience.learn(found=True)
    patience.learn(found=True)
    assert patience.looks() == LOOKS
