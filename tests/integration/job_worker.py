"""A worker as load jobs of a master see one: takes tasks, knows what it has, says what failed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from cachefs.core.cluster import Work, Worked
from cachefs.core.jobs import FileFailure, Room, Task, TaskKind, TaskResult
from cachefs.core.model import Origin

Ask = Callable[[Work], Awaitable[Worked]]
WAIT_S = 5.0


class TaskWorker:
    """`failing`: path at the origin -> code, for ever; `room_files`: more do not fit."""

    def __init__(self, name: str = "w", room_files: int = 1 << 30, capacity: int = -1) -> None:
        self.name = name
        self.have: set[tuple[int, int]] = set()
        self.fetched: Counter[bytes] = Counter()
        self.failing: dict[bytes, str] = {}
        self.codes: dict[int, str] = {}  # by ino: this version is not there any more
        self.room_files = room_files
        self.capacity = capacity
        self.tasks: list[Task] = []
        self.running: dict[int, int] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self._run, self._seen = "", 0

    async def serve(self, ask: Ask) -> None:
        """Until it is cancelled; does a task when the gate is open."""
        outcomes: list[TaskResult] = []
        while True:
            call = Work(self.name, self._run, outcomes, 1 << 30, WAIT_S, self._seen, self.capacity)
            worked = await ask(call)
            if worked.run != self._run:
                self._run, self._seen = worked.run, 0
            outcomes, self.running = [], worked.running
            for task in worked.tasks:
                self._seen = max(self._seen, task.number)
                self.tasks.append(task)
                await self.gate.wait()
                outcomes.append(self.perform(task))
            await asyncio.sleep(0)

    def perform(self, task: Task) -> TaskResult:
        failures: list[FileFailure] = []
        fetched, room = 0, None
        for place, one in enumerate(task.files):
            key = (one.origin.content.ino, one.block)
            code = "no-space" if room is not None else self._do(task.kind, key, one.origin)
            if code == "fetched":
                fetched += one.origin.size
            elif code:
                failures.append(FileFailure(place, code, f"{code} of the test"))
                if code == "no-space":
                    room = Room(self.room_files, 1, 2, 3)
        return TaskResult(task.number, fetched, failures, room)

    def _do(self, kind: TaskKind, key: tuple[int, int], origin: Origin) -> str:
        if key in self.have:
            return ""
        if kind is not TaskKind.LOAD:
            return "missing"
        code = self.failing.get(origin.path) or self.codes.get(key[0], "")
        if code:
            return code
        if len(self.have) >= self.room_files:
            return "no-space"
        self.have.add(key)
        self.fetched[origin.path] += 1
        return "fetched"
