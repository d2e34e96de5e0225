"""Events are reported in their order, beside the work, and their number is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from cachefs.kube import late_reports
from cachefs.kube.events import NORMAL, Event, Reference
from cachefs.kube.late_reports import LateReports


class SlowReporter:
    """Takes one event at a time, each when `go` allows it."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.go = asyncio.Semaphore(0)

    async def report(self, found: Iterable[Event]) -> None:
        await self.go.acquire()
        self.taken += [event.reason for event in found]


def event(reason: str) -> Event:
    return Event(Reference("v1", "Pod", "ml", "p", "u"), NORMAL, reason, "")


def test_events_are_reported_in_their_order() -> None:
    async def work() -> None:
        slow: Any = SlowReporter()
        reports = LateReports(slow)
        task = asyncio.create_task(reports.run())
        for reason in ("a", "b", "c"):
            reports.add(event(reason))
        slow.go.release()
        while slow.taken != ["a"]:
            await asyncio.sleep(0)
        reports.add(event("d"))
        for _ in range(3):
            slow.go.release()
        while len(slow.taken) < 4:
            await asyncio.sleep(0)
        assert slow.taken == ["a", "b", "c", "d"]
        assert len(reports) == 0
        task.cancel()

    asyncio.run(work())


def test_the_oldest_events_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_reports, "MOST", 2)

    async def work() -> None:
        slow: Any = SlowReporter()
        reports = LateReports(slow)
        for reason in ("a", "b", "c"):
            reports.add(event(reason))
        task = asyncio.create_task(reports.run())
        for _ in range(2):
            slow.go.release()
        while len(slow.taken) < 2:
            await asyncio.sleep(0)
        assert slow.taken == ["b", "c"]
        task.cancel()

    asyncio.run(work())
