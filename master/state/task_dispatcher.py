"""The load tasks that wait for each worker, and the tasks that each worker has. Pure.

Parts of files wait in batches, one batch per future task, queued for the owner of their blocks. A
worker that requests work gets tasks of the job with the highest priority; among equals, of the job
that gave it the fewest bytes. The dispatcher takes tasks back from a worker that is lost, reports
another run, or sends no request for LEASE_S. It requeues them for the current owners. Times are
monotonic seconds, `wall_s` wall clock.
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

LEAST_BYTES: Final = 64 << 10  # the least size that a part counts as
TASKS_PER_ANSWER: Final = 64
FLOOR: Final = 1 / 16  # least share of a job's work that a worker counts as having
ANYBODY: Final = ""  # queue for any worker, where there is no membership
NOBODY: Final = "-"  # queue where no worker owns blocks


class Order(msgspec.Struct, frozen=True):
    """The settings for a job's tasks. `check`: the kind of task for parts that are not loads."""

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

    def in_flight_bytes(self, place: int, cached_bytes: int) -> int:
        """Returns how many bytes of a part in progress count: those of the primary owner. Only its
        result shows that the part is complete; until then its last byte does not count."""
        part = self.parts[place] if 0 <= place < len(self.parts) else None
        if part is None or part.rank or not part.load or part.is_void:
            return 0
        return max(0, min(cached_bytes, part.size - 1))


class AssignedTask(msgspec.Struct, frozen=True, gc=False):
    """A task that a worker has, and its parts."""

    pack: TaskBatch
    task: Task


Unowned = list[tuple[int, Part]]  # (job, part) without an owner of its rank


class _TaskWorker:
    """A worker that requests tasks."""

    def __init__(self, now: float) -> None:
        self.seen_s = now
        self.given: dict[int, AssignedTask] = {}  # by task number, in their order
        self.turn = 0  # virtual time in bytes (fair queueing): start of the last task
        self.turns: dict[int, int] = {}  # by job: the end of its last task
        self.bytes: dict[int, int] = {}  # by job: bytes outstanding
        self.told: frozenset[int] = frozenset()  # running jobs, as last sent to it
        self.shares: dict[int, int] = {}  # bandwidth shares by job, as last sent to it
        self.progress: dict[tuple[int, int], int] = {}  # (task, place) -> cached bytes, as reported

    def in_flight_bytes(self, job: int) -> int:
        """Returns the reported progress of a job's tasks that the worker still has."""
        total_bytes = 0
        for (number, place), cached_bytes in self.progress.items():
            given = self.given.get(number)
            if given is not None and given.pack.job == job:
                total_bytes += given.pack.in_flight_bytes(place, cached_bytes)
        return total_bytes


class TaskDispatcher:
    """The dispatcher of one run of the master. `run` is the nonce of that run."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.returned = 0  # tasks that were taken back, or moved to other owners
        self._number = 0
        self._orders: dict[int, Order] = {}
        self._queues: dict[str, dict[int, deque[TaskBatch]]] = {}
        self._workers: dict[str, _TaskWorker] = {}
        self._placement: Placement | None = None

    def begin(self, order: Order) -> None:
        """Starts a job, or replaces its settings."""
        self._orders[order.job] = order

    def end(self, job: int) -> None:
        """Drops a job and all of its tasks."""
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
        """Queues parts for the owners of their blocks. Returns the parts without an owner of their
        rank: there are fewer workers than replicas."""
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

    def place(self, placement: Placement | None, members: Iterable[str]) -> Unowned:
        """Applies a new placement: requeues waiting parts, and tasks of workers that are not in
        `members`, for the new owners."""
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
        """Takes back the tasks of workers that sent no request for LEASE_S."""
        silent = [name for name, one in self._workers.items() if one.seen_s + LEASE_S <= now]
        unowned: Unowned = []
        for name in silent:
            unowned += self._release(name)
            del self._workers[name]
        return unowned

    def settle(self, call: Work, now: float) -> list[tuple[TaskBatch, Told]]:
        """Records the reported progress. Returns each reported result with its parts; skips tasks
        the worker does not have."""
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
        worker.progress = {(one.number, one.place): one.cached_bytes for one in call.progress}
        return settled

    def hand_out(self, call: Work, now: float, wall_s: float) -> tuple[Worked, Unowned]:
        """Returns the reply to a worker's request for tasks, and parts that have no owner."""
        unowned: Unowned = []
        worker = self._workers.get(call.worker)
        if worker is None:
            worker = self._workers[call.worker] = _TaskWorker(now)
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
        """Returns whether the running jobs differ from those last sent to the worker."""
        worker = self._workers.get(name)
        return worker is not None and worker.told != self._orders.keys()

    def tell(self, name: str) -> None:
        """Records that the worker is sent the running jobs."""
        worker = self._workers.get(name)
        if worker is not None:
            worker.told = frozenset(self._orders)

    def in_flight_bytes(self, job: int) -> int:
        """Returns the bytes of a job that are cached as parts of unfinished tasks."""
        return sum(worker.in_flight_bytes(job) for worker in self._workers.values())

    def outstanding(self) -> int:
        """Returns the number of tasks that workers have."""
        return sum(len(worker.given) for worker in self._workers.values())

    @staticmethod
    def _lost(worker: _TaskWorker, seen: int) -> list[Task]:
        """Returns the tasks that were handed out but did not arrive."""
        if seen < 0 or not worker.given or next(reversed(worker.given)) <= seen:
            return []
        return [given.task for number, given in worker.given.items() if number > seen]

    def _release(self, name: str) -> Unowned:
        worker = self._workers[name]
        packs = [given.pack for given in worker.given.values()]
        worker.given, worker.bytes, worker.progress = {}, {}, {}
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

    def _next(self, name: str, worker: _TaskWorker) -> TaskBatch | None:
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

    def _running(self, name: str, worker: _TaskWorker) -> dict[int, int]:
        worker.shares = {job: self._share(order, name) for job, order in self._orders.items()}
        return worker.shares

    def _share(self, order: Order, name: str) -> int:
        """Returns a worker's share of a job's bandwidth, in proportion to its work. Other workers
        learn of a smaller share with their next reply, so above a floor only the rest is given."""
        bandwidth, job = order.bandwidth_bytes_s, order.job
        if not bandwidth:
            return 0
        least = bandwidth * FLOOR / len(self._workers)
        others = (w for n, w in self._workers.items() if n != name and w.bytes.get(job))
        left = bandwidth - sum(worker.shares.get(job, 0) for worker in others)
        return max(1, int(min(bandwidth * self._just_share(job, name), max(least, left))))

    def _just_share(self, job: int, name: str) -> float:
        """Returns a worker's fraction by work left; all are equal while none is left."""
        to_do = {one: self._to_do_bytes(one, job) for one in self._workers}
        total = sum(to_do.values())
        if not total:
            return 1 / len(to_do)
        floor = total * FLOOR
        mine = max(to_do[name], floor)
        others = sum(max(size, floor) for one, size in to_do.items() if size and one != name)
        return mine / (mine + others)

    def _to_do_bytes(self, name: str, job: int) -> int:
        """Returns the bytes of a job that a worker has or that wait for it."""
        waiting = self._queues.get(name, {}).get(job, ())
        return self._workers[name].bytes.get(job, 0) + sum(pack.bytes for pack in waiting)


def _turn(worker: _TaskWorker, order: Order) -> tuple[int, int, int]:
    """Returns the sort key of a job; the smallest is next: priority, fairness, age."""
    turn = max(worker.turn, worker.turns.get(order.job, 0))
    return -PRIORITIES.index(order.priority), turn, order.job


def _owner(placement: Placement, part: Part) -> str | None:
    """Returns the id of the worker for a part: the owner of its rank, or who stands in for it; None
    without such an owner."""
    ino, block = part.slot.origin.content.ino, max(0, part.block)
    replicas = max(1, part.slot.origin.rule.replicas)
    owners = placement.owners(ino, block, (replicas if part.stands_in else part.rank) + 1)
    if not owners:
        return NOBODY
    if part.stands_in and len(owners) > replicas:
        return owners[replicas].id
    return owners[part.rank].id if part.rank < len(owners) else None
