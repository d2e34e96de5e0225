"""What is to be handed out to which worker, and what each of them has. Pure.

Parts of files wait, packed as they will be handed out, with the worker that owns their blocks. A
worker that asks gets tasks of the job of highest priority, among equals of that which gave it the
fewest bytes. Tasks of a worker that is lost, asks in another run, or does not ask for LEASE_S go
back, to who owns their blocks then. Times are monotonic seconds, `wall_s` wall clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from cachefs.core.cluster import Work, Worked
from cachefs.core.jobs import LEASE_S, PRIORITIES, TASK_BYTES, TASK_FILES, Task, TaskFile, TaskKind
from cachefs.core.jobs import TaskResult as Told
from cachefs.core.placement import Placement
from master.state.window import Part

LEAST_BYTES: Final = 64 << 10  # what a file counts at least
TASKS_PER_ANSWER: Final = 64
FLOOR: Final = 1 / 16  # of what is to do for a job: each worker that asks counts as so much
ANYBODY: Final = ""  # whose the parts are where there is no membership
NOBODY: Final = "-"  # and where nobody owns anything


class Order(msgspec.Struct, frozen=True):
    """How a job's tasks are handed out. `check`: what is asked of what is not to be loaded."""

    job: int
    priority: str = "normal"
    bandwidth_bytes_s: int = 0
    check: TaskKind = TaskKind.CHECK
    hold_s: float = 0.0
    hold_read: bool = False


class TaskBatch:
    """Parts that make one task."""

    __slots__ = ("bytes", "job", "load", "parts")

    def __init__(self, job: int, *, load: bool) -> None:
        self.job = job
        self.load = load
        self.parts: list[Part] = []
        self.bytes = 0

    def has_room(self, part: Part) -> bool:
        same = self.load == part.load
        return same and self.bytes < TASK_BYTES and len(self.parts) < TASK_FILES

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.bytes += part.size if part.size > LEAST_BYTES else LEAST_BYTES


class AssignedTask(msgspec.Struct, frozen=True, gc=False):
    """A task that a worker has."""

    pack: TaskBatch
    task: Task


Unowned = list[tuple[int, Part]]  # (job, part): there is no owner of its rank


class _Worker:
    """A worker as it asks."""

    def __init__(self, now: float) -> None:
        self.seen_s = now
        self.given: dict[int, AssignedTask] = {}  # by task number, in their order
        self.turn = 0  # in bytes: the start of the last task in a queue that is fair to all jobs
        self.turns: dict[int, int] = {}  # the end of each job's last
        self.bytes: dict[int, int] = {}  # of them what is outstanding
        self.told: frozenset[int] = frozenset()  # jobs that run, as it was told
        self.shares: dict[int, int] = {}  # of their bandwidths, as it was told


class TaskDispatcher:
    """One per run of the master. `run` is its nonce."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.returned = 0  # tasks that were taken back, or moved to other owners
        self._number = 0
        self._orders: dict[int, Order] = {}
        self._queues: dict[str, dict[int, deque[TaskBatch]]] = {}
        self._workers: dict[str, _Worker] = {}
        self._placement: Placement | None = None

    # ---- jobs ------------------------------------------------------------------------------------

    def begin(self, order: Order) -> None:
        """A job runs, or runs with other settings."""
        self._orders[order.job] = order

    def end(self, job: int) -> None:
        """A job's tasks are no longer wanted."""
        self._orders.pop(job, None)
        for queues in self._queues.values():
            queues.pop(job, None)
        for worker in self._workers.values():
            worker.turns.pop(job, None)
            worker.bytes.pop(job, None)
            gone = [number for number, given in worker.given.items() if given.pack.job == job]
            for number in gone:
                del worker.given[number]

    def add(self, job: int, parts: Iterable[Part]) -> list[Part]:
        """Parts to be handed out to who owns their blocks. Those are returned for which there is
        no owner of their rank: there are fewer workers than replicas are wanted."""
        queues, placement, unowned = self._queues, self._placement, list[Part]()
        worker: str | None = ANYBODY
        for part in parts:
            if placement is not None:
                worker = _owner(placement, part)
            if worker is None or (worker == ANYBODY and part.rank):
                unowned.append(part)
                continue
            packs = queues.setdefault(worker, {}).setdefault(job, deque())
            if not packs or not packs[-1].has_room(part):
                packs.append(TaskBatch(job, load=part.load))
            packs[-1].add(part)
        return unowned

    # ---- workers ---------------------------------------------------------------------------------

    def place(self, placement: Placement | None, members: Iterable[str]) -> Unowned:
        """Blocks have other owners: what waits goes to them, and what those have who are none of
        `members`."""
        self._placement = placement
        queues, self._queues = self._queues, {}
        waiting = [
            pack for by_job in queues.values() for packs in by_job.values() for pack in packs
        ]
        unowned = self._put_back(waiting)
        if placement is not None:
            for name in self._workers.keys() - {*members}:
                unowned += self._release(name)
                del self._workers[name]
        return unowned

    def expire(self, now: float) -> Unowned:
        """Takes back what those have who did not ask for LEASE_S."""
        silent = [name for name, one in self._workers.items() if one.seen_s + LEASE_S <= now]
        unowned: Unowned = []
        for name in silent:
            unowned += self._release(name)
            del self._workers[name]
        return unowned

    def settle(self, call: Work, now: float) -> list[tuple[TaskBatch, Told]]:
        """What became of tasks: each is told once, what a worker does not have is passed over."""
        worker = self._workers.get(call.worker)
        if worker is None or call.run != self.run:
            return []
        worker.seen_s = now
        settled = []
        for told in call.outcomes:
            given = worker.given.pop(told.number, None)
            if given is not None:
                pack = given.pack
                worker.bytes[pack.job] -= pack.bytes
                settled.append((pack, told))
        return settled

    def hand_out(self, call: Work, now: float, wall_s: float) -> tuple[Worked, Unowned]:
        """Tasks for a worker that asks."""
        unowned: Unowned = []
        worker = self._workers.get(call.worker)
        if worker is None:
            worker = self._workers[call.worker] = _Worker(now)
        elif call.run != self.run:
            unowned = self._release(call.worker)
        worker.seen_s = now
        tasks = self._lost(worker, call.seen)
        left = call.room_bytes
        while left > 0 and len(tasks) < TASKS_PER_ANSWER:
            pack = self._next(call.worker, worker)
            if pack is None:
                break
            task = self._task(pack, wall_s)
            worker.given[task.number] = AssignedTask(pack, task)
            worker.bytes[pack.job] = worker.bytes.get(pack.job, 0) + pack.bytes
            tasks.append(task)
            left -= pack.bytes
        return Worked(self.run, tasks, self._running(call.worker, worker)), unowned

    def is_news(self, name: str) -> bool:
        """Do other jobs run than a worker was told?"""
        worker = self._workers.get(name)
        return worker is not None and worker.told != self._orders.keys()

    def tell(self, name: str) -> None:
        """A worker is told which jobs run."""
        worker = self._workers.get(name)
        if worker is not None:
            worker.told = frozenset(self._orders)

    def outstanding(self) -> int:
        """Tasks that workers have."""
        return sum(len(worker.given) for worker in self._workers.values())

    # ---- inside ----------------------------------------------------------------------------------

    @staticmethod
    def _lost(worker: _Worker, seen: int) -> list[Task]:
        """Tasks that were handed out and did not arrive."""
        if seen < 0 or not worker.given or next(reversed(worker.given)) <= seen:
            return []
        return [given.task for number, given in worker.given.items() if number > seen]

    def _release(self, name: str) -> Unowned:
        worker = self._workers[name]
        packs = [given.pack for given in worker.given.values()]
        worker.given, worker.bytes = {}, {}
        return self._put_back(packs)

    def _put_back(self, packs: Iterable[TaskBatch]) -> Unowned:
        unowned: Unowned = []
        for pack in packs:
            job = pack.job
            if job in self._orders:
                self.returned += 1
                parts = self.add(job, [part for part in pack.parts if not part.is_void])
                unowned += [(job, part) for part in parts]
        return unowned

    def _next(self, name: str, worker: _Worker) -> TaskBatch | None:
        queues = self._queues.get(ANYBODY if self._placement is None else name)
        if not queues:
            return None
        waiting = [self._orders[job] for job, packs in queues.items() if packs]
        if not waiting:
            return None
        _, turn, job = min(_turn(worker, order) for order in waiting)
        packs = queues[job]
        pack = packs.popleft()
        if not packs:
            del queues[job]
        worker.turn, worker.turns[job] = turn, turn + pack.bytes
        return pack

    def _task(self, pack: TaskBatch, wall_s: float) -> Task:
        self._number += 1
        order = self._orders[pack.job]
        files = [TaskFile(part.slot.origin, part.block) for part in pack.parts]
        if not pack.load:
            return Task(self._number, pack.job, order.check, files)
        hold_until_s = wall_s + order.hold_s if order.hold_s else 0.0
        return Task(self._number, pack.job, TaskKind.LOAD, files, hold_until_s, order.hold_read)

    def _running(self, name: str, worker: _Worker) -> dict[int, int]:
        worker.shares = {job: self._share(order, name) for job, order in self._orders.items()}
        return worker.shares

    def _share(self, order: Order, name: str) -> int:
        """Of a job's bandwidth: what is just by what each worker that asks has to do for it, and
        no more than others leave, who hear only with their next answer that they have less."""
        bandwidth, job = order.bandwidth_bytes_s, order.job
        if not bandwidth:
            return 0
        least = bandwidth * FLOOR / len(self._workers)
        others = (w for n, w in self._workers.items() if n != name and w.bytes.get(job))
        left = bandwidth - sum(worker.shares.get(job, 0) for worker in others)
        return max(1, int(min(bandwidth * self._just_share(job, name), max(least, left))))

    def _just_share(self, job: int, name: str) -> float:
        """While nothing is known to be done all have the same."""
        to_do = {one: self._to_do_bytes(one, job) for one in self._workers}
        total = sum(to_do.values())
        if not total:
            return 1 / len(to_do)
        floor = total * FLOOR
        mine = max(to_do[name], floor)
        others = sum(max(size, floor) for one, size in to_do.items() if size and one != name)
        return mine / (mine + others)

    def _to_do_bytes(self, name: str, job: int) -> int:
        """What a worker has of a job, and what waits for it."""
        waiting = self._queues.get(name, {}).get(job, ())
        return self._workers[name].bytes.get(job, 0) + sum(pack.bytes for pack in waiting)


def _turn(worker: _Worker, order: Order) -> tuple[int, int, int]:
    """The smallest one is next: priority, fairness, age."""
    turn = max(worker.turn, worker.turns.get(order.job, 0))
    return -PRIORITIES.index(order.priority), turn, order.job


def _owner(placement: Placement, part: Part) -> str | None:
    """None where there is no owner of that rank."""
    ino = part.slot.origin.content.ino
    owners = placement.owners(ino, part.block if part.block > 0 else 0, part.rank + 1)
    if not owners:
        return NOBODY
    return owners[part.rank].id if part.rank < len(owners) else None
