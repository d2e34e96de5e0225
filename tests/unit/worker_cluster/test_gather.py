"""Questions that go together: one call for those of one turn, few calls at a time, one answer for
equal questions, an answer for everybody whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cachefs.core.errors import CacheFSError, NotFound, Unreachable
from tests.unit.worker_cluster.fake_master import run, until
from worker.names.request_batcher import RequestBatcher


class Rig:
    """Answers a number with its square once `gate` is open; 13 is not found, 666 fails all."""

    def __init__(self, most_items: int = 10, most_calls: int = 2) -> None:
        self.calls: list[list[int]] = []
        self.gate = asyncio.Event()
        self.idle = 0
        self.it: RequestBatcher[int, int] = RequestBatcher(
            self.ask, most_items=most_items, most_calls=most_calls, on_idle=self.on_idle
        )

    def on_idle(self) -> None:
        self.idle += 1

    async def ask(self, numbers: Sequence[int]) -> list[int | CacheFSError]:
        self.calls.append([*numbers])
        await self.gate.wait()
        if 666 in numbers:
            raise Unreachable("no answer")
        return [NotFound("unlucky") if n == 13 else n * n for n in numbers]


def test_the_questions_of_one_turn_are_one_call() -> None:
    async def script() -> None:
        rig = Rig()
        rig.gate.set()
        assert await asyncio.gather(*(rig.it.get(n) for n in (1, 2, 3, 2))) == [1, 4, 9, 4]
        assert rig.calls == [[1, 2, 3]]
        await until(lambda: rig.idle == 1)

    run(script())


def test_few_calls_are_under_way_and_the_rest_goes_together() -> None:
    async def script() -> None:
        rig = Rig(most_items=3)
        asks = []
        for n in range(9):
            asks.append(asyncio.ensure_future(rig.it.get(n)))
            await asyncio.sleep(0.001)
        assert rig.calls == [[0], [1]]
        rig.gate.set()
        assert await asyncio.gather(*asks) == [n * n for n in range(9)]
        assert sorted(map(len, rig.calls)) == [1, 1, 1, 3, 3]

    run(script())


def test_an_error_is_its_questions_own_or_everybodys() -> None:
    async def script() -> None:
        rig = Rig()
        rig.gate.set()
        results = await asyncio.gather(*(rig.it.get(n) for n in (2, 13)), return_exceptions=True)
        assert results[0] == 4
        assert isinstance(results[1], NotFound)
        results = await asyncio.gather(*(rig.it.get(n) for n in (2, 666)), return_exceptions=True)
        assert [type(result) for result in results] == [Unreachable, Unreachable]

    run(script())


def test_who_no_longer_waits_leaves_the_call_to_others() -> None:
    async def script() -> None:
        rig = Rig()
        first, second = (asyncio.ensure_future(rig.it.get(7)) for _ in range(2))
        await until(lambda: bool(rig.calls))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        rig.gate.set()
        assert await second == 49
        assert rig.calls == [[7]]

    run(script())


def test_a_forgotten_question_is_asked_again() -> None:
    async def script() -> None:
        rig = Rig()
        first = asyncio.ensure_future(rig.it.get(7))
        await until(lambda: bool(rig.calls))
        rig.it.forget(7)
        second = asyncio.ensure_future(rig.it.get(7))
        await until(lambda: len(rig.calls) == 2)
        rig.gate.set()
        assert await asyncio.gather(first, second) == [49, 49]

    run(script())


def test_a_question_that_was_not_sent_yet_need_not_be_asked_twice() -> None:
    async def script() -> None:
        rig = Rig(most_calls=1)
        asks = [asyncio.ensure_future(rig.it.get(1))]
        await until(lambda: bool(rig.calls))
        asks.append(asyncio.ensure_future(rig.it.get(2)))
        await asyncio.sleep(0)
        rig.it.forget(2)
        rig.it.forget_all()
        asks.append(asyncio.ensure_future(rig.it.get(2)))
        await asyncio.sleep(0)
        rig.gate.set()
        assert await asyncio.gather(*asks) == [1, 4, 4]
        assert rig.calls == [[1], [2]]

    run(script())


def test_the_end_answers_everybody() -> None:
    async def script() -> None:
        rig = Rig(most_calls=1)
        asks = [asyncio.ensure_future(rig.it.get(1))]
        await until(lambda: bool(rig.calls))
        asks.append(asyncio.ensure_future(rig.it.get(2)))
        await asyncio.sleep(0)
        await rig.it.close()
        for result in await asyncio.gather(*asks, return_exceptions=True):
            assert isinstance(result, Unreachable)

    run(script())


def test_too_many_questions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.names.request_batcher.MAX_OPEN", 3)

    async def script() -> None:
        rig = Rig()
        asks = [asyncio.ensure_future(rig.it.get(n)) for n in range(3)]
        await until(lambda: bool(rig.calls))
        with pytest.raises(Unreachable):
            await rig.it.get(4)
        rig.gate.set()
        await asyncio.gather(*asks)
        assert await rig.it.get(4) == 16

    run(script())
