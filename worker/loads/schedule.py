"""The decisions of a worker's loader: which files to start, when to poll the master, and which
outcomes to report. Pure: `handle(event, now) -> actions`; `worker.loads.loader` executes them.

Tasks start in the order of their numbers, which the master chose. A job that has used up its
bandwidth waits while others continue. Files start while fewer than `requests` requests are in
flight. Tasks of jobs that the master no longer names are dropped; at its restart, all tasks are.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cachefs.core.cluster import Work, Worked
from cachefs.core.jobs import (
    FileFailure,
    FileProgress,
    Room,
    Task,
    TaskFile,
    TaskKind,
    TaskResult,
)
from cachefs.core.model import PAGE_BYTES
from cachefs.core.placement import BLOCK_BYTES
from worker.cache.load_requests import PIECES
from worker.runtime.rate import TokenBucket

REQUESTS: Final = 96  # in flight to origins, counted in requests for at most a page
PAGES_COST: Final = 3  # the cost of a request for more than a page
LARGE_BYTES: Final = 8 * PAGE_BYTES  # a larger block takes several requests
LEAST_BYTES: Final = 64 << 10  # a smaller file is counted with this size
MOST_BYTES: Final = 4 << 30  # of assigned tasks: large blocks for all requests, twice
MOST_FILES: Final = 1024  # of assigned tasks
LONG_S: Final = 20.0  # the wait of a long poll, while no task is assigned
POLL_S: Final = 0.25  # between polls while more tasks could be taken
BEAT_S: Final = 2.0  # the longest time between polls
RETRY_S: Final = 1.0  # after a poll without a reply
NO_SPACE: Final = "no-space"
_CHECK_COST: Final = {TaskKind.CHECK: REQUESTS // 8, TaskKind.VERIFY: REQUESTS // 4}


# ---- events --------------------------------------------------------------------------------------


class PollAnswered(NamedTuple):
    worked: Worked


class Unanswered(NamedTuple):
    """The poll failed."""


class FileFetched(NamedTuple):
    """The load of a `LoadFile` needs no more requests, so others may start. It has not ended yet.
    `FileEnded` may occur without this event."""

    id: int
    place: int


class FileEnded(NamedTuple):
    """The load of a `LoadFile` has ended, with `failure` if it failed. `fetched_bytes`: from the
    origin. `room`: the cache use, if there was no space."""

    id: int
    place: int
    fetched_bytes: int
    failure: FileFailure | None = None
    room: Room | None = None


class Checked(NamedTuple):
    """The check of a `Check` has ended."""

    id: int
    failures: Sequence[FileFailure]


class WakeDue(NamedTuple):
    """`wake_at_s` has passed. An early one is harmless."""


Event = PollAnswered | Unanswered | FileFetched | FileEnded | Checked | WakeDue


# ---- actions -------------------------------------------------------------------------------------


class PollMaster(NamedTuple):
    """Poll the master; `PollAnswered` or `Unanswered` follows."""

    work: Work


class LoadFile(NamedTuple):
    """Load one file of a task; `FileEnded` follows. `id`: this worker's id of the task."""

    id: int
    task: Task
    place: int
    file: TaskFile


class Check(NamedTuple):
    """Check all files of a CHECK or VERIFY task; `Checked` follows."""

    id: int
    task: Task


class Drop(NamedTuple):
    """The task is no longer needed: its loads may end early. Their events are still expected."""

    id: int


Action = PollMaster | LoadFile | Check | Drop


@dataclass(eq=False, slots=True)
class _Doing:
    """An assigned task. `next`: the index of its first file not started. `id` is local, because a
    restarted master reuses task numbers."""

    id: int
    task: Task
    sizes: list[int]  # as counted
    next: int = 0
    open: set[int] = field(default_factory=set)  # places of files in progress
    busy: set[int] = field(default_factory=set)  # places of files with requests in flight
    fetched_bytes: int = 0
    charged: dict[int, int] = field(default_factory=dict)  # place -> bytes charged to the bucket
    failures: list[FileFailure] = field(default_factory=list)
    room: Room | None = None
    is_dropped: bool = False

    @property
    def is_begun(self) -> bool:
        return self.next == len(self.task.files)

    def progress(self, cached_bytes: Callable[[TaskFile], int]) -> Iterator[FileProgress]:
        """Yields the progress of the files of more than a page."""
        failed = {failure.place for failure in self.failures}
        for place in range(self.next):
            if self.sizes[place] > PAGE_BYTES and place not in failed:
                is_open = place in self.open
                size_bytes = cached_bytes(self.task.files[place]) if is_open else self.sizes[place]
                yield FileProgress(self.task.number, place, size_bytes)


class LoadSchedule:
    """The assigned tasks. `wake_at_s`: the time of the next `WakeDue`, in the caller's clock."""

    def __init__(self, worker: str, *, requests: int = REQUESTS) -> None:
        self.capacity_bytes = -1  # reported with the next poll
        self.wake_at_s = 0.0
        self._worker = worker
        self._requests = requests
        self._run = ""
        self._seen = 0
        self._ids = itertools.count(1)
        self._doing: dict[int, _Doing] = {}  # by id; dropped ones until their loads end
        self._waiting: dict[int, deque[_Doing]] = {}  # by job: tasks with files to start
        self._buckets: dict[int, TokenBucket] = {}
        self._in_flight = 0  # requests
        self._bytes = self.files = 0  # of assigned tasks
        self._outcomes: list[TaskResult] = []
        self._sent: list[TaskResult] | None = None  # with the poll in flight
        self._asked_at_s = float("-inf")
        self._fed = True  # the last reply had tasks
        self._retry_at_s = float("-inf")

    # ---- queries and charges ----

    @property
    def is_idle(self) -> bool:
        """True if no task is assigned."""
        return self.files == 0

    def wants(self, id: int) -> bool:
        """Returns whether a task is still needed."""
        doing = self._doing.get(id)
        return doing is not None and not doing.is_dropped

    def wait_s(self, id: int, now: float) -> float:
        """Returns the time until a task may send one more request, in seconds; 0: now."""
        bucket = self._bucket(self._doing.get(id))
        return bucket.wait_s(now) if bucket is not None else 0.0

    def progress(self, cached_bytes: Callable[[TaskFile], int]) -> list[FileProgress]:
        """Returns the progress of the load tasks. `cached_bytes` returns how much of a file in
        progress is cached."""
        loads = [
            doing
            for doing in self._doing.values()
            if doing.task.kind is TaskKind.LOAD and not doing.is_dropped
        ]
        return [one for doing in loads for one in doing.progress(cached_bytes)]

    def charge(self, id: int, place: int, size_bytes: int, now: float) -> None:
        """Charges the job's bandwidth for a request of a large file, before it is sent."""
        doing = self._doing.get(id)
        bucket = self._bucket(doing)
        if doing is not None and bucket is not None:
            bucket.charge(size_bytes, now)
            doing.charged[place] = doing.charged.get(place, 0) + size_bytes

    def _bucket(self, doing: _Doing | None) -> TokenBucket | None:
        if doing is None or doing.is_dropped:
            return None
        return self._buckets.get(doing.task.job)

    # ---- events ----

    def handle(self, event: Event, now: float) -> list[Action]:
        return self.handle_all((event,), now)

    def handle_all(self, events: Iterable[Event], now: float) -> list[Action]:
        """Handles concurrent events together and returns the actions."""
        actions: list[Action] = []
        for event in events:
            self._handle(event, now, actions)
        self._begin(now, actions)
        self._ask(now, actions)
        return actions

    def _handle(self, event: Event, now: float, actions: list[Action]) -> None:
        match event:
            case FileFetched(id, place):
                self._release_requests(self._doing[id], place)
            case FileEnded():
                self._file_ended(event, now)
            case PollAnswered(worked):
                self._answered(worked, now, actions)
            case Unanswered():
                self._outcomes = [*(self._sent or []), *self._outcomes]
                self._sent = None
                self._retry_at_s = now + RETRY_S
            case Checked(id, failures):
                self._checked(id, failures)

    def _answered(self, worked: Worked, now: float, actions: list[Action]) -> None:
        self._sent = None
        if worked.run != self._run:
            self._drop([*self._doing.values()], actions)
            self._outcomes.clear()
            self._run, self._seen = worked.run, 0
        ended = [one for one in self._doing.values() if one.task.job not in worked.running]
        self._drop(ended, actions)
        self._set_rates(worked.running, now)
        fresh = [task for task in worked.tasks if task.number > self._seen]
        for task in fresh:
            self._take(task)
        self._fed = bool(fresh)

    def _set_rates(self, running: dict[int, int], now: float) -> None:
        for job in [job for job in self._buckets if not running.get(job)]:
            del self._buckets[job]
        for job, bytes_per_s in running.items():
            if bytes_per_s > 0 and job in self._buckets:
                self._buckets[job].set_rate(bytes_per_s, now)
            elif bytes_per_s > 0:
                self._buckets[job] = TokenBucket(bytes_per_s)

    def _take(self, task: Task) -> None:
        self._seen = max(self._seen, task.number)
        doing = _Doing(
            next(self._ids), task, [max(LEAST_BYTES, size_of(file)) for file in task.files]
        )
        self._bytes += sum(doing.sizes)
        self.files += len(doing.sizes)
        self._doing[doing.id] = doing
        self._waiting.setdefault(task.job, deque()).append(doing)

    def _drop(self, ended: Sequence[_Doing], actions: list[Action]) -> None:
        for doing in ended:
            if doing.is_dropped:
                continue
            doing.is_dropped = True
            actions.append(Drop(doing.id))
            self._uncount(doing)
            if not doing.open:
                del self._doing[doing.id]
            waiting = self._waiting.get(doing.task.job, ())
            if doing in waiting:
                self._waiting[doing.task.job].remove(doing)
                if not self._waiting[doing.task.job]:
                    del self._waiting[doing.task.job]

    def _uncount(self, doing: _Doing) -> None:
        self._bytes -= sum(doing.sizes)
        self.files -= len(doing.sizes)

    # ---- ends of loads and tasks ----

    def _release_requests(self, doing: _Doing, place: int) -> None:
        if place in doing.busy:
            doing.busy.remove(place)
            self._in_flight -= _cost(doing.task.files[place])

    def _file_ended(self, event: FileEnded, now: float) -> None:
        doing = self._doing[event.id]
        self._release_requests(doing, event.place)
        doing.open.remove(event.place)
        doing.fetched_bytes += event.fetched_bytes
        if doing.charged:
            bucket = self._bucket(doing)
            charged = doing.charged.pop(event.place, 0)
            if bucket is not None:
                bucket.charge(event.fetched_bytes - charged, now)
        if event.failure is not None:
            doing.failures.append(event.failure)
        if event.room is not None and not doing.is_dropped:
            self._no_room(doing, event.room)
        self._end_if_over(doing)

    def _no_room(self, doing: _Doing, room: Room) -> None:
        """Ends all assigned load tasks of the job: their files not started fail with no-space."""
        doing.room = doing.room or room
        waiting = self._waiting.pop(doing.task.job, deque())
        checks = deque(one for one in waiting if one.task.kind is not TaskKind.LOAD)
        if checks:
            self._waiting[doing.task.job] = checks
        for one in waiting:
            if one.task.kind is TaskKind.LOAD:
                one.room = one.room or room
                rest = range(one.next, len(one.task.files))
                one.failures += [FileFailure(place, NO_SPACE, "not tried") for place in rest]
                one.next = len(one.task.files)
                if one is not doing:
                    self._end_if_over(one)

    def _checked(self, id: int, failures: Sequence[FileFailure]) -> None:
        doing = self._doing[id]
        self._in_flight -= _CHECK_COST[doing.task.kind]
        doing.open.clear()
        doing.failures += failures
        self._end_if_over(doing)

    def _end_if_over(self, doing: _Doing) -> None:
        if doing.is_dropped and not doing.open:
            del self._doing[doing.id]
        elif not doing.open and doing.is_begun:
            failures = sorted(doing.failures, key=lambda one: one.place)
            self._outcomes.append(
                TaskResult(doing.task.number, doing.fetched_bytes, failures, doing.room)
            )
            self._uncount(doing)
            del self._doing[doing.id]

    # ---- starts ----

    def _begin(self, now: float, actions: list[Action]) -> None:
        while self._in_flight < self._requests:
            doing = self._next(now)
            if doing is None:
                return
            if doing.task.kind is TaskKind.LOAD:
                actions.append(self._begin_file(doing, now))
            else:
                self._in_flight += _CHECK_COST[doing.task.kind]
                doing.next = len(doing.task.files)
                doing.open.update(range(doing.next))
                actions.append(Check(doing.id, doing.task))
            if doing.is_begun:
                self._begun(doing.task.job)

    def _begun(self, job: int) -> None:
        waiting = self._waiting[job]
        waiting.popleft()
        if not waiting:
            del self._waiting[job]

    def _next(self, now: float) -> _Doing | None:
        """Returns the task with the lowest number whose job has bandwidth; None: no such task."""
        found = None
        for job, waiting in self._waiting.items():
            first = waiting[0]
            bucket = self._buckets.get(job)
            is_open = bucket is None or first.task.kind is not TaskKind.LOAD or bucket.is_open(now)
            if is_open and (found is None or first.task.number < found.task.number):
                found = first
        return found

    def _begin_file(self, doing: _Doing, now: float) -> LoadFile:
        place = doing.next
        file = doing.task.files[place]
        doing.next += 1
        doing.open.add(place)
        doing.busy.add(place)
        self._in_flight += _cost(file)
        if doing.task.job in self._buckets and not is_large(file):
            self.charge(doing.id, place, size_of(file), now)
        return LoadFile(doing.id, doing.task, place, file)

    # ---- polls ----

    def _ask(self, now: float, actions: list[Action]) -> None:
        due_s = self._due_s()
        if self._sent is None and now >= due_s:
            wait_s = LONG_S if self.is_idle else 0.0
            self._sent, self._outcomes = self._outcomes, []
            self._asked_at_s = now
            actions.append(PollMaster(self._poll(wait_s)))
        self.wake_at_s = min(due_s if self._sent is None else float("inf"), self._opens_at_s(now))

    def _poll(self, wait_s: float) -> Work:
        return Work(
            self._worker,
            self._run,
            [*(self._sent or [])],
            self._room_bytes(),
            wait_s,
            self._seen,
            self.capacity_bytes,
        )

    def _room_bytes(self) -> int:
        files = max(0, MOST_FILES - self.files)
        return max(0, min(MOST_BYTES - self._bytes, files * LEAST_BYTES))

    def _due_s(self) -> float:
        """Returns the time of the next poll, if none is in flight."""
        if self.is_idle:
            pause_s = 0.0 if self._fed or self._outcomes else POLL_S  # prevents a busy loop
            return max(self._retry_at_s, self._asked_at_s + pause_s)
        is_hungry = 2 * self.files < MOST_FILES and 2 * self._bytes < MOST_BYTES
        pause_s = BEAT_S
        if is_hungry:
            pause_s = 0.0 if self._fed else POLL_S
        return max(self._retry_at_s, self._asked_at_s + pause_s)

    def _opens_at_s(self, now: float) -> float:
        """Returns the time at which the next throttled job has bandwidth again; inf: none."""
        if self._in_flight >= self._requests:
            return float("inf")
        waits_s = [
            bucket.wait_s(now) for job, bucket in self._buckets.items() if job in self._waiting
        ]
        return now + min(waits_s, default=float("inf"))

    def check_invariants(self) -> None:
        doing = [one for one in self._doing.values() if not one.is_dropped]
        assert self.files == sum(len(one.sizes) for one in doing)
        assert self._bytes == sum(sum(one.sizes) for one in doing)
        assert all(one.open or not one.is_begun for one in doing), "an ended task is still assigned"
        assert all(one.open for one in self._doing.values() if one.is_dropped)
        for job, waiting in self._waiting.items():
            assert waiting, f"job {job} waits without a task"
            assert all(one.id in self._doing and not one.is_begun for one in waiting)
        most = max(PAGES_COST * PIECES, *_CHECK_COST.values())
        assert self._in_flight < self._requests + most
        assert self._in_flight >= 0


def size_of(file: TaskFile) -> int:
    """Returns the size of the file, or of its block, in bytes."""
    size = file.origin.size
    return size if file.block < 0 else max(0, min(BLOCK_BYTES, size - file.block * BLOCK_BYTES))


def is_large(file: TaskFile) -> bool:
    """Returns whether a file takes several requests, each of which is charged separately."""
    return size_of(file) > LARGE_BYTES


def _cost(file: TaskFile) -> int:
    """Returns the cost of a file, in requests for a page."""
    if size_of(file) <= PAGE_BYTES:
        return 1
    return PAGES_COST * (PIECES if is_large(file) else 1)
