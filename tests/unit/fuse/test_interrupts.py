"""A caller with a signal stops waiting; nothing else ends a wait."""

from __future__ import annotations

import signal

import pytest
import trio
import trio.testing

from cachefs.core.errors import Interrupted
from cachefs.fuse.interrupts import MAX_PIDS_PER_LOOK, PATIENCE_S, Interrupts, has_signal


def status(pending: int = 0, shared: int = 0, blocked: int = 0, ignored: int = 0) -> bytes:
    return (
        f"Name:\tcat\nSigQ:\t0/1\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\n"
        f"SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t0000000000000002\n"
    ).encode()


def bit(number: signal.Signals) -> int:
    return 1 << number - 1


def test_which_signals_end_a_wait() -> None:
    interrupt = bit(signal.SIGINT)
    assert has_signal(status(shared=interrupt))
    assert has_signal(status(pending=bit(signal.SIGKILL)))
    assert has_signal(status(shared=bit(signal.SIGALRM)))
    assert not has_signal(status())
    assert not has_signal(status(shared=interrupt, blocked=interrupt))
    assert not has_signal(status(shared=interrupt, ignored=interrupt))
    for passed_over in (signal.SIGPROF, signal.SIGCHLD, signal.SIGTSTP, signal.SIGURG):
        assert not has_signal(status(shared=bit(passed_over)))
    assert not has_signal(b"")


def test_only_the_signalled_caller_is_interrupted() -> None:
    signalled: set[int] = set()

    def status_of(pid: int) -> bytes:
        return status(shared=bit(signal.SIGINT) if pid in signalled else 0)

    async def main() -> None:
        interrupts = Interrupts(status_of)
        ended: dict[int, str] = {}
        gate = trio.Event()

        async def wait(pid: int) -> None:
            with trio.CancelScope() as scope:

                def interrupt(error: Interrupted) -> None:
                    assert "signal" in error.cause
                    scope.cancel()

                await interrupts.run(pid, interrupt, gate.wait)
                ended[pid] = "done"
            if scope.cancelled_caught:
                ended[pid] = "interrupted"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupts.watch)
            for pid in (0, 10, 11):
                nursery.start_soon(wait, pid)
            await trio.sleep(1)
            assert ended == {}
            signalled.add(11)
            await trio.sleep(0.2)
            assert ended == {11: "interrupted"}
            gate.set()
            await trio.sleep(0.1)
            assert ended == {11: "interrupted", 0: "done", 10: "done"}
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_errors_of_the_work_come_through() -> None:
    async def fail() -> None:
        raise KeyError("x")

    async def main() -> None:
        with pytest.raises(KeyError):
            await Interrupts(lambda _: b"").run(5, lambda _: None, fail)

    trio.run(main)


def test_nobody_is_looked_at_before_a_while() -> None:
    """Answers within milliseconds cost no look at /proc."""
    looked_at: list[int] = []

    def status_of(pid: int) -> bytes:
        looked_at.append(pid)
        return b""

    async def main() -> None:
        interrupts = Interrupts(status_of)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupts.watch)
            for pid in range(1, 40):
                await interrupts.run(pid, lambda _: None, lambda: trio.sleep(PATIENCE_S / 2))
            assert looked_at == []
            await interrupts.run(40, lambda _: None, lambda: trio.sleep(3 * PATIENCE_S))
            assert set(looked_at) == {40}
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_all_of_many_callers_are_looked_at_by_turns() -> None:
    """Also those behind many that wait for as long."""
    many = 3 * MAX_PIDS_PER_LOOK
    looked_at: list[int] = []

    def status_of(pid: int) -> bytes:
        looked_at.append(pid)
        return status(shared=bit(signal.SIGTERM) if pid == many else 0)

    interrupts = Interrupts(status_of)
    ended: list[int] = []
    for pid in range(1, many + 1):
        for _ in range(2):
            interrupts.add(pid, lambda _, pid=pid: ended.append(pid))  # type: ignore[misc]
    for look in range(1, 4):
        interrupts.look(2 * many)
        assert len(looked_at) == look * MAX_PIDS_PER_LOOK
    assert sorted(looked_at) == [*range(1, many + 1)]
    assert ended == [many, many]
    interrupts.look(2 * many)
    assert looked_at[-MAX_PIDS_PER_LOOK:] == looked_at[:MAX_PIDS_PER_LOOK]
    interrupts.look(0)
    assert len(looked_at) == 4 * MAX_PIDS_PER_LOOK
