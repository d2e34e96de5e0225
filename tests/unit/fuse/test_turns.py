"""Exactly one worker waits for the next request, also when handlers wait and workers end."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio

from cachefs.fuse.turns import (
    LOOKS,
    REFUSALS_PER_TRIAL,
    REQUESTS_PER_ROUND,
    Patience,
    TrioForPyfuse3,
    Turns,
)


class Pyfuse3:
    """The session loop as pyfuse3 has it, on one byte per request; b"w" waits for `gate`, b"x"
    ends the session."""

    def __init__(self, sock: socket.socket) -> None:
        self.turns = Turns()
        self.trio = TrioForPyfuse3(self.turns)
        self.lock = self.trio.Lock()
        self.sock = sock
        self.gate = trio.Event()
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
        finally:
            self.readers -= 1
        return True

    async def worker(self, nursery: object) -> None:
        while not self.exited:
            if self.readers > 64 or not await self.readable():
                return
            request = self.sock.recv(1)
            if not self.readers:
                self.workers += 1
                nursery.start_soon(self.worker, nursery, name="worker")  # type: ignore[attr-defined]
            if request == b"x":
                self.exited = True
                return
            if request == b"w":
                self.turns.wake()
                await self.gate.wait()
            self.answered.append(request)


def run(test: Callable[[Pyfuse3, socket.socket], Awaitable[None]]) -> None:
    async def main() -> None:
        kernel, ours = socket.socketpair()
        ours.setblocking(False)
        with kernel, ours, trio.fail_after(10):
            session = Pyfuse3(ours)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.main)
                await test(session, kernel)
                kernel.send(b"x")

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
        session.gate.set()
        await until(lambda: len(session.answered) == waiting + 1)
        kernel.send(b"b" * 10)
        await until(lambda: session.answered[-10:] == [b"b"] * 10)

    run(test)


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
    patience = Patience()
    for _ in range(20):
        patience.learn(found=False)
    assert patience.looks() == 1
    for _ in range(REFUSALS_PER_TRIAL):
        patience.learn(found=False)
    assert patience.looks() in (1, LOOKS)
    patience.learn(found=True)
    patience.learn(found=True)
    assert patience.looks() == LOOKS
