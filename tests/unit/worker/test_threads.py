"""Threads of a loop: stuck ones do not count, never are many told to end that none is left, and
what comes after the end is refused."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cachefs.core.errors import Interrupted
from worker.runtime import threads
from worker.runtime.threads import LoopCallbackQueue, Threads

LIMIT_S = 20.0


def test_a_pool_has_a_thread_left_however_often_stuck_ones_come_and_go() -> None:
    async def script() -> None:
        pool = Threads("test", 1, LoopCallbackQueue(asyncio.get_running_loop()))
        go_on = threading.Event()
        try:
            stuck = pool.run(go_on.wait, LIMIT_S)
            for _ in range(3):  # the one that is to end has not ended when the next count comes
                behind = pool.run(go_on.wait, LIMIT_S)
                pool.count_out(1)
                behind.cancel()
                pool.count_out(0)
            go_on.set()
            await stuck
            assert await asyncio.wait_for(pool.run(lambda: "done"), LIMIT_S) == "done"
        finally:
            go_on.set()
            assert pool.close(LIMIT_S)

    asyncio.run(script())


def test_a_stuck_thread_is_made_up_for() -> None:
    async def script() -> None:
        pool = Threads("test", 1, LoopCallbackQueue(asyncio.get_running_loop()))
        go_on = threading.Event()
        try:
            stuck = pool.run(go_on.wait, LIMIT_S)
            behind = pool.run(lambda: "done")
            pool.count_out(1)
            assert await asyncio.wait_for(behind, LIMIT_S) == "done"
            assert not stuck.done()
        finally:
            go_on.set()
            assert pool.close(LIMIT_S)

    asyncio.run(script())


@pytest.mark.parametrize("calls_before", [0, 1])
def test_nobody_waits_for_a_call_that_comes_after_the_end(calls_before: int) -> None:
    """Else it would wait for ever."""

    async def script() -> None:
        pool = Threads("test", 1, LoopCallbackQueue(asyncio.get_running_loop()))
        for _ in range(calls_before):
            await pool.run(lambda: None)
        assert pool.close(LIMIT_S)
        with pytest.raises(Interrupted):
            await asyncio.wait_for(pool.run(lambda: "done"), LIMIT_S)

    asyncio.run(script())


def test_calls_wait_until_the_system_has_threads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the pool has as many as before: the calls wait for each other."""
    real_start, refused = threading.Thread.start, list[str]()

    def start(thread: threading.Thread) -> None:
        if len(refused) < 3:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        real_start(thread)

    monkeypatch.setattr(threads, "START_AGAIN_S", 0.01)
    monkeypatch.setattr(threading.Thread, "start", start)

    async def script() -> None:
        pool = Threads("test", 2, LoopCallbackQueue(asyncio.get_running_loop()))
        both = threading.Barrier(2)
        calls = [pool.run(both.wait, 20.0) for _ in range(2)]
        assert len(refused) == 2
        assert sorted(await asyncio.wait_for(asyncio.gather(*calls), 30.0)) == [0, 1]
        assert pool.close(5.0)

    asyncio.run(script())
    assert len(refused) == 3


def test_there_is_room_while_a_thread_is_left() -> None:
    async def script() -> None:
        pool = Threads("test", 2, LoopCallbackQueue(asyncio.get_running_loop()))
        go_on = threading.Event()
        try:
            calls = []
            for _ in range(2):
                assert pool.has_room
                calls.append(pool.run(go_on.wait, LIMIT_S))
            assert not pool.has_room
            go_on.set()
            await asyncio.gather(*calls)
            assert pool.has_room
        finally:
            go_on.set()
            assert pool.close(LIMIT_S)

    asyncio.run(script())


def test_calls_behind_leave_threads_to_others_and_all_are_made() -> None:
    async def script() -> None:
        pool = Threads("test", 4, LoopCallbackQueue(asyncio.get_running_loop()))
        go_on = threading.Event()
        try:
            behind = [pool.behind.run(go_on.wait, 20.0) for _ in range(20)]
            assert await asyncio.wait_for(pool.run(lambda: "done"), 20.0) == "done"
            assert not any(future.done() for future in behind)
            go_on.set()
            assert await asyncio.wait_for(asyncio.gather(*behind), 20.0) == [True] * 20
        finally:
            go_on.set()
            assert pool.close(LIMIT_S)

    asyncio.run(script())


def test_calls_behind_do_not_wait_for_stuck_ones() -> None:
    async def script() -> None:
        pool = Threads("test", 4, LoopCallbackQueue(asyncio.get_running_loop()))
        go_on = threading.Event()
        try:
            stuck = [pool.behind.run(go_on.wait, 20.0) for _ in range(3)]
            others = [pool.behind.run(lambda: "done") for _ in range(5)]
            pool.count_out(3)
            assert await asyncio.wait_for(asyncio.gather(*others), 20.0) == ["done"] * 5
            assert not any(future.done() for future in stuck)
        finally:
            go_on.set()
            assert pool.close(LIMIT_S)

    asyncio.run(script())


def test_calls_behind_hear_of_the_end() -> None:
    async def script() -> None:
        pool = Threads("test", 1, LoopCallbackQueue(asyncio.get_running_loop()))
        go_on = threading.Event()
        first, second = (pool.behind.run(go_on.wait, LIMIT_S) for _ in range(2))
        assert not pool.close(0.0)
        go_on.set()
        await first
        with pytest.raises(Interrupted):
            await asyncio.wait_for(second, LIMIT_S)
        assert pool.close(LIMIT_S)

    asyncio.run(script())


def test_calls_from_the_loop_and_from_a_thread_run_in_order_also_behind_one_that_raises() -> None:
    async def script() -> None:
        loop, came = asyncio.get_running_loop(), list[int]()
        queue, raised = LoopCallbackQueue(loop), list[object]()
        loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
        ended = loop.create_future()

        def fail() -> None:
            raise ZeroDivisionError

        def from_thread() -> None:
            queue.call(came.append, 3)
            queue.call(queue.call_from_loop, came.append, 5)
            queue.call(queue.call_from_loop, ended.set_result, None)

        queue.call_from_loop(came.append, 1)
        queue.call_from_loop(fail)
        queue.call_from_loop(came.append, 2)
        thread = threading.Thread(target=from_thread)
        thread.start()
        thread.join()
        queue.call_from_loop(came.append, 4)
        assert came == [], "not at once"
        await asyncio.wait_for(ended, LIMIT_S)
        assert came == [1, 2, 3, 4, 5]
        assert [type(one) for one in raised] == [ZeroDivisionError]

    asyncio.run(script())
