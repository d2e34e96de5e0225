"""Reports that arrive together are checked together, and none waits for one that does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from cachefs.core.errors import Throttled
from cachefs.core.model import UfsSpec
from master.origins.unavailable import NullConnector
from master.push import rounds
from master.push.rounds import Rounds
from master.state.records import MountRecord
from master.tree import Mount

LIMIT_S = 20.0


class Checks:
    """The checks that rounds made. `gate`: a check ends once it is set."""

    def __init__(self) -> None:
        self.made: list[tuple[Mount, list[bytes]]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def check(self, mount: Mount, names: Sequence[bytes]) -> None:
        self.made.append((mount, sorted(names)))
        await self.gate.wait()
        if self.error is not None:
            raise self.error


def mount(root: int = 1) -> Mount:
    return Mount(root, MountRecord(UfsSpec("s3://x"), b"data"), NullConnector(), 60.0)


def play(script: Callable[[Rounds, Checks], Awaitable[None]]) -> None:
    async def work() -> None:
        checks = Checks()
        async with asyncio.timeout(LIMIT_S):
            await script(Rounds(checks.check, asyncio.get_running_loop().create_task), checks)

    asyncio.run(work())


def never_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(one: Any) -> None:
        raise AssertionError("this sender waits for its answer")

    monkeypatch.setattr(rounds, "_gather", fail)


def test_a_sender_that_waits_for_each_answer_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never_pauses(monkeypatch)

    async def script(rounds: Rounds, checks: Checks) -> None:
        checks.gate.set()
        for number in range(5):
            await rounds.check(one, [b"%d" % number])
        assert checks.made == [(one, [b"%d" % number]) for number in range(5)]

    one = mount()
    play(script)


def test_reports_that_arrive_during_a_check_are_one_round() -> None:
    async def script(rounds: Rounds, checks: Checks) -> None:
        first = asyncio.ensure_future(rounds.check(one, [b"a"]))
        while not checks.made:
            await asyncio.sleep(0)
        later = [asyncio.ensure_future(rounds.check(one, [n, b"x"])) for n in (b"b", b"c", b"d")]
        while len(checks.made) < 2:
            await asyncio.sleep(0)
        assert checks.made == [(one, [b"a"]), (one, [b"b", b"c", b"d", b"x"])]
        assert not any(task.done() for task in (first, *later)), "nothing is checked yet"
        checks.gate.set()
        await asyncio.gather(first, *later)

    one = mount()
    play(script)


def test_each_source_has_its_own_round() -> None:
    """Also one that was put in the place of another."""

    async def script(rounds: Rounds, checks: Checks) -> None:
        checks.gate.set()
        sources = [mount(1), mount(2), mount(1)]
        await asyncio.gather(*(rounds.check(one, [b"a"]) for one in sources))
        assert [made for made, _ in checks.made] == sources

    play(script)


def test_a_round_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many reports arrive."""
    monkeypatch.setattr(rounds, "MOST_NAMES", 10)

    async def script(rounds: Rounds, checks: Checks) -> None:
        checks.gate.set()
        names = [b"%02d" % number for number in range(100)]
        reports = [names[first : first + 5] for first in range(0, 100, 5)]
        await asyncio.gather(*(rounds.check(one, some) for some in reports))
        assert all(len(found) <= 10 for _, found in checks.made)
        assert sorted(name for _, found in checks.made for name in found) == names

    one = mount()
    play(script)


def test_every_report_of_a_round_has_its_error_and_a_cancelled_one_ends_none() -> None:
    async def script(rounds: Rounds, checks: Checks) -> None:
        reports = [asyncio.ensure_future(rounds.check(one, [name])) for name in (b"a", b"b", b"c")]
        while not checks.made:
            await asyncio.sleep(0)
        reports[0].cancel()
        checks.error = Throttled("too many")
        checks.gate.set()
        found = await asyncio.gather(*reports, return_exceptions=True)
        assert [type(error) for error in found] == [asyncio.CancelledError, Throttled, Throttled]
        checks.error = None
        await rounds.check(one, [b"a"])
        assert checks.made[-1] == (one, [b"a"])

    one = mount()
    play(script)
