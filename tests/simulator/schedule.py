"""The clock: what happens when, and to which process. A process that ended is told nothing more,
one that is stopped is told when it goes on.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Call = Callable[[], None]


class Process:
    """One run of a program on a host. `resumes_s`: stopped (as by SIGSTOP) until then."""

    def __init__(self, schedule: Schedule, host: str) -> None:
        self.schedule = schedule
        self.host = host
        self.is_alive = True
        self.resumes_s = 0.0

    @property
    def now_s(self) -> float:
        return self.schedule.now_s

    @property
    def is_stopped(self) -> bool:
        return self.resumes_s > self.schedule.now_s

    def after(self, delay_s: float, call: Call) -> None:
        self.schedule.at(self.schedule.now_s + delay_s, call, self)


class Schedule:
    """What is due, in the order of time; what is due at one time, in the order of being asked."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps = 0
        self._due: list[tuple[float, int, Process | None, Call]] = []
        self._number = itertools.count()

    def at(self, time_s: float, call: Call, process: Process | None = None) -> None:
        heapq.heappush(self._due, (time_s, next(self._number), process, call))

    def after(self, delay_s: float, call: Call, process: Process | None = None) -> None:
        self.at(self.now_s + delay_s, call, process)

    def run(self, until_s: float) -> None:
        due = self._due
        while due and due[0][0] <= until_s:
            time_s, _, process, call = heapq.heappop(due)
            self.now_s = time_s
            if process is not None:
                if not process.is_alive:
                    continue
                if process.resumes_s > time_s:
                    self.at(process.resumes_s, call, process)
                    continue
            self.steps += 1
            call()
        self.now_s = until_s
