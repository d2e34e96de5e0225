"""A world of one load job: a namespace, an origin, workers that crash and a wire that loses and
repeats, over the pure machines; and what must hold in it. Every choice is drawn from one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from cachefs.core.cluster import Work, Worked
from cachefs.core.errors import NotFound
from cachefs.core.jobs import (
    LEASE_S,
    FileFailure,
    FileProgress,
    FullQuota,
    JobSpec,
    JobState,
    Room,
    Task,
    TaskKind,
    TaskResult,
)
from cachefs.core.model import ContentId, NamespaceId, Origin
from cachefs.core.placement import BLOCK_BYTES, Member, Placement, block_count
from cachefs.core.policies import Rule
from master.state.job_record import JobRecord, decode_record, encode_record
from master.state.jobs import MAX_ATTEMPTS, Effects, Job
from master.state.task_dispatcher import TaskDispatcher
from master.state.window import Position, Slot

NAMESPACE = NamespaceId(b"n" * 16)
JOB = 1
Key = tuple[int, int]  # ino, block


@dataclass
class File:
    """A file at the origin. `ino` changes with its bytes."""

    ino: int
    size: int
    forbidden: bool = False
    flaky: int = 0  # so many more requests fail, and may be tried again


@dataclass
class Worker:
    """A cache, and the loader's tasks. The cache outlives a crash, the tasks do not."""

    id: str
    limit: int = 1 << 60
    quota: int = 0  # of its blocks, its share of what all may have; 0: none
    cache: set[Key] = field(default_factory=set)
    run: str = ""
    seen: int = 0
    tasks: dict[int, Task] = field(default_factory=dict)
    outcomes: list[TaskResult] = field(default_factory=list)
    sent: list[Work] = field(default_factory=list)  # may come again, late

    def restart(self) -> None:
        self.run, self.seen, self.tasks, self.outcomes = "", 0, {}, []


class World:
    """See the module. `now` moves only when the world says so."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 1000.0
        self.inos = 0
        self.trouble = self.dice.choice([0.02, 0.1, 0.3])  # of a step
        self.bad = self.dice.choice([0.0, 0.0, 0.1])  # of the files
        self.replicas = self.dice.choice([1, 1, 2, 3])
        self.files = {b"f%03d" % n: self.file() for n in range(self.dice.randint(0, 12))}
        self.known = {path: (file.ino, file.size) for path, file in self.files.items()}
        self.workers = {f"w{n}": Worker(f"w{n}") for n in range(self.dice.randint(1, 3))}
        if self.dice.random() < 0.1:
            for worker in self.workers.values():
                worker.limit = self.dice.randint(0, 3)
        self.share = self.dice.randint(1, 3) if self.dice.random() < 0.15 else 0
        for worker in self.workers.values():
            worker.quota = self.share
        self.quota = self.share * len(self.workers)
        self.refused: set[bytes] = set()  # by a quota, at some time
        self.failed_before: set[bytes] = set()  # in a round that is over
        self.durable: tuple[bytes, list[bytes]] = (b"", [])
        self.loaded: set[bytes] = set()  # paths that some worker brought, or found complete
        self.seen_whole: dict[bytes, set[tuple[int, int]]] = {}  # in the second pass
        self.gone: set[bytes] = set()  # vanished or changed at some time
        self.flaky = {path for path, file in self.files.items() if file.flaky >= MAX_ATTEMPTS}
        self.is_second = False
        self.stopped = False  # and that was acknowledged
        self.lost_room = False
        spec = JobSpec((), verify=self.dice.random() < 0.3)
        record = JobRecord(JOB, spec, (b"",), 1, 0.0)
        self.durable = (encode_record(record), [])
        self.start_master()

    def file(self) -> File:
        self.inos += 1
        size = self.dice.choice([0, 1, 100, 1 << 20, BLOCK_BYTES, 2 * BLOCK_BYTES + 5])
        return File(
            self.inos,
            size,
            forbidden=self.dice.random() < self.bad,
            flaky=self.dice.choice([0, 0, 0, 1, 2, 5]) if self.dice.random() < self.bad * 5 else 0,
        )

    # ---- the master ------------------------------------------------------------------------------

    def start_master(self) -> None:
        """From what is durable, and nothing else."""
        self.desk = TaskDispatcher(f"run{self.dice.random()}")
        self.job = Job(decode_record(self.durable[0]), self.now)
        self.failed = list(self.durable[1])
        self.looks: list[Slot] = []
        self.place()
        if self.job.runs:
            self.desk.begin(self.job.order)
        self.feeding_from = self.job.watermark
        self.feeds_checks = self.job.checks

    def place(self) -> None:
        members = [Member(one.id, "", 1.0) for one in self.workers.values()]
        for _, part in self.desk.place(Placement(members), [one.id for one in members]):
            self.job.unowned([part])

    def count(self) -> None:
        record = self.job.record
        if record.counting_done or not self.job.runs:
            return
        more = sorted(path for path in self.known if path > record.counted.path)
        if not more:
            if not self.known and not record.files_found:
                self.job.note(b"", NotFound("nothing is there"))
            return self.job.counting_ended()
        for path in more[: self.dice.randint(1, 4)]:
            size = self.known[path][1]
            self.job.counted(Position(0, path), 1, size, size, matched=True)

    def feed(self) -> None:
        job = self.job
        if not job.runs or job.pass_fed:
            return
        if job.checks != self.feeds_checks:
            if not job.is_durable:
                return  # failures are looked up in the store
            self.feeding_from, self.feeds_checks = job.watermark, job.checks
        record = job.record
        come = None if record.counting_done else record.counted.path
        more = sorted(path for path in self.known if path > self.feeding_from.path)
        more = [path for path in more if come is None or path <= come]
        if not more:
            if record.counting_done:
                job.fed()
            return
        taken = more[: self.dice.randint(1, 4)]
        self.feeding_from = Position(0, taken[-1])
        if job.checks:
            taken = [path for path in taken if path not in self.failed]
        self.hand(Effects(parts=job.feed([(0, path, self.origin(path)) for path in taken])))

    def origin(self, path: bytes) -> Origin:
        ino, size = self.known[path]
        content = ContentId(NAMESPACE, ino, 0, 0)
        return Origin(content, "s3://b", path, str(ino), size, 0, Rule(replicas=self.replicas))

    def hand(self, effects: Effects) -> None:
        if not self.job.runs:
            self.desk.end(JOB)
            self.looks = []
            return
        unowned = self.desk.add(JOB, effects.parts)
        if unowned:
            self.job.unowned(unowned)
        self.looks += effects.look

    def look(self) -> None:
        """The master asks the origin again."""
        if not self.looks:
            return
        slot = self.looks.pop(self.dice.randrange(len(self.looks)))
        file = self.files.get(slot.path)
        if file is None:
            self.known.pop(slot.path, None)
            self.hand(self.job.looked(slot, None, None))
        else:
            self.known[slot.path] = (file.ino, file.size)
            self.hand(self.job.looked(slot, self.origin(slot.path), None))

    def pass_time(self, *, faults: bool) -> None:
        self.now += self.dice.choice([0.1, 1.0, 3.0, LEASE_S if faults else 0.5])
        for _, part in self.desk.expire(self.now):
            self.job.unowned([part])
        self.hand(Effects(parts=self.job.tick(self.now)))

    def save(self) -> None:
        write = self.job.take(self.now, self.now)
        if write is None:
            return
        if self.dice.random() < 0.1:
            self.job.not_written(write)
            return
        if write.record.round != decode_record(self.durable[0]).round:
            self.failed_before |= {*self.failed}
            self.failed = []
        paths = [failure.path for failure in write.failures]
        self.failed += paths
        self.durable = (encode_record(write.record), list(self.failed))
        self.job.wrote(write)
        self.check_durable(write.record)

    def check_durable(self, record: JobRecord) -> None:
        """The watermark passed nothing that is not settled."""
        if record.feeding_done and not self.is_second:
            self.is_second = True
            self.seen_whole.clear()  # what was seen in the first pass is not enough
        assert len(self.failed) == len(set(self.failed)) == record.files_failed
        passed = [path for path in self.known if path <= record.fed.path and path not in self.gone]
        for path in passed:
            known = path in self.loaded or path in self.failed or path in self.failed_before
            assert known, f"{path!r} was never loaded"
        assert record.files_done >= 0

    # ---- operators -------------------------------------------------------------------------------

    def operate(self) -> None:
        """Stops, or lets go on; acknowledged once it is durable."""
        action = self.dice.choice(["stop", "resume"])
        state = self.job.record.state
        if state.has_ended and not (action == "resume" and self.job.record.again):
            return
        if action == "resume" and self.job.runs:
            return
        self.job.control(action, self.now, self.now)
        while not self.job.is_durable:
            self.save()
            self.job.hurry()
        self.stopped = action == "stop"
        self.desk.end(JOB)
        if self.job.runs:
            self.looks = []
            self.desk.begin(self.job.order)
            self.feeding_from, self.feeds_checks = self.job.watermark, self.job.checks

    # ---- workers ---------------------------------------------------------------------------------

    def ask(self, worker: Worker, *, faults: bool) -> None:
        room = self.dice.choice([0, 1, 1 << 20, 1 << 30])
        outcomes, progress = [*worker.outcomes], self.progress(worker)
        call = Work(worker.id, worker.run, outcomes, room, 0.0, worker.seen, progress=progress)
        if faults and self.dice.random() < 0.1:
            return  # the question is lost
        answer = self.answer(call)
        worker.sent.append(call)
        if faults and self.dice.random() < 0.15:
            return  # the answer is lost
        if answer.run != worker.run:
            worker.tasks, worker.seen, worker.outcomes = {}, 0, []
        worker.run = answer.run
        del worker.outcomes[: len(call.outcomes)]
        for task in answer.tasks:
            if task.number > worker.seen:
                worker.tasks[task.number] = task
        worker.seen = max([worker.seen, *(task.number for task in answer.tasks)])
        if JOB not in answer.running:
            worker.tasks.clear()

    def progress(self, worker: Worker) -> list[FileProgress]:
        """Of some files of the worker's tasks, all of their bytes at the most."""
        dice = self.dice
        return [
            FileProgress(number, place, dice.choice([0, 1, file.origin.size]))
            for number, task in worker.tasks.items()
            for place, file in enumerate(task.files)
            if task.kind is TaskKind.LOAD and dice.random() < 0.5
        ]

    def check_progress(self) -> None:
        """What is shown counts no byte twice, and no file in progress as done."""
        job = self.job
        in_flight_bytes = self.desk.in_flight_bytes(JOB)
        shown, without = job.shown(self.now, "", in_flight_bytes), job.shown(self.now)
        assert in_flight_bytes == 0 or job.runs, "a job that does not run has tasks"
        assert (shown.state, shown.files_done) == (without.state, without.files_done)
        assert shown.bytes_done >= without.bytes_done >= 0
        if not job.checks:
            most_bytes = job.record.bytes_done + job.window.bytes
            assert shown.bytes_done + (in_flight_bytes > 0) <= most_bytes, "counted twice"

    def ask_again(self, worker: Worker) -> None:
        """An old question comes once more; nobody waits for its answer."""
        if worker.sent:
            self.answer(self.dice.choice(worker.sent))

    def answer(self, call: Work) -> Worked:
        for pack, told in self.desk.settle(call, self.now):
            self.hand(self.job.settle(pack, told, self.now, call.worker))
        worked, unowned = self.desk.hand_out(call, self.now, self.now)
        for _, part in unowned:
            self.job.unowned([part])
        self.check_progress()
        return worked

    def perform(self, worker: Worker) -> None:
        if not worker.tasks:
            return
        task = worker.tasks.pop(self.dice.choice([*worker.tasks]))
        failures: list[FileFailure] = []
        room: Room | None = None
        for place, one in enumerate(task.files):
            origin = one.origin
            if room is not None:
                failures.append(FileFailure(place, "no-space", ""))
                continue
            keys = self.keys(origin, one.block)
            if task.kind is not TaskKind.LOAD:
                if not keys <= worker.cache:
                    failures.append(FileFailure(place, "missing", ""))
                    continue
            elif not keys <= worker.cache:
                code = self.fetch(origin)
                if not code and len(worker.cache | keys) > worker.limit:
                    room, code = Room(worker.limit, 1, 0, 0), "no-space"
                    self.lost_room = True
                full = None if code else self.full_quota(worker, keys)
                if code or full is not None:
                    self.refused |= {origin.path} if full is not None else set()
                    failures.append(FileFailure(place, code or "no-space", code, full))
                    continue
                worker.cache |= keys
            self.loaded.add(origin.path)
            self.seen_whole.setdefault(origin.path, set()).update(keys)
        worker.outcomes.append(TaskResult(task.number, 1, failures, room))

    def full_quota(self, worker: Worker, keys: set[Key]) -> FullQuota | None:
        if not worker.quota or len(worker.cache | keys) <= worker.quota:
            return None
        return FullQuota(b"", self.quota, len(worker.cache), worker.quota)

    @staticmethod
    def keys(origin: Origin, block: int) -> set[Key]:
        ino = origin.content.ino
        blocks = range(block_count(origin.size)) if block < 0 else [block]
        return {(ino, one) for one in blocks}

    def fetch(self, origin: Origin) -> str:
        """The code of a failure, or ""."""
        file = self.files.get(origin.path)
        if file is None:
            return "not-found"
        if file.ino != origin.content.ino:
            return "stale"
        if file.flaky:
            file.flaky -= 1
            return "unreachable"
        return "access-denied" if file.forbidden else ""

    # ---- what goes wrong -------------------------------------------------------------------------

    def disturb(self) -> None:
        dice = self.dice
        worker = dice.choice([*self.workers.values()])
        kind = dice.randrange(11)
        if kind == 0:
            self.start_master()
            if self.stopped:
                assert self.job.record.state is JobState.STOPPED, "it was stopped for good"
        elif kind == 1:
            worker.restart()
        elif kind == 2:
            worker.restart()
            worker.cache.clear()
        elif kind == 3 and len(self.workers) > 1:
            del self.workers[worker.id]
            self.place()
        elif kind == 4:
            name = f"x{dice.randrange(99)}"
            self.workers.setdefault(name, Worker(name, worker.limit, self.share))
            self.place()
        elif kind == 5 and worker.cache:
            worker.cache.remove(dice.choice(sorted(worker.cache)))
        elif kind == 6 and self.files:
            path = dice.choice(sorted(self.files))
            del self.files[path]
            self.gone.add(path)
        elif kind == 7 and self.files:
            path = dice.choice(sorted(self.files))
            self.files[path] = self.file()
            self.gone.add(path)
        elif kind >= 8:
            self.ask_again(worker)

    def step(self, *, faults: bool) -> None:
        worker = self.dice.choice([*self.workers.values()])
        steps: list[Callable[[], None]] = [
            self.count,
            self.feed,
            self.feed,
            lambda: self.ask(worker, faults=faults),
            lambda: self.ask(worker, faults=faults),
            lambda: self.perform(worker),
            lambda: self.perform(worker),
            self.look,
            self.save,
            lambda: self.pass_time(faults=faults),
        ]
        self.dice.choice(steps)()
        self.check_progress()
        if faults and self.dice.random() < self.trouble:
            self.disturb()
        if faults and self.dice.random() < self.trouble / 6:
            self.operate()

    # ---- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing goes wrong any more: the job ends, and what it says is true."""
        if self.job.record.state is JobState.STOPPED:
            self.operate_resume()
        for _ in range(20_000):
            if self.job.record.state.has_ended and self.job.is_durable:
                break
            self.step(faults=False)
            if self.job.record.state.has_ended:
                self.job.hurry()
                self.save()
        self.check_end(decode_record(self.durable[0]))

    def operate_resume(self) -> None:
        self.job.control("resume", self.now, self.now)
        self.desk.begin(self.job.order)
        self.stopped = False
        self.feeding_from, self.feeds_checks = self.job.watermark, self.job.checks

    def check_end(self, record: JobRecord) -> None:
        assert record.state.has_ended, f"it is {record.state} after all that time"
        if record.again:
            assert self.lost_room or self.refused, "there was room"
            return
        for path in self.failed:
            file = self.files.get(path)
            blameless = file is not None and not file.forbidden and path not in self.gone
            excused = path in self.flaky or path in self.refused
            assert not blameless or excused, f"{path!r} could be loaded"
        assert record.files_found == record.files_done + record.files_failed
        assert record.files_done == record.files_verified
        assert (record.state is JobState.SUCCEEDED) == (record.files_failed == 0)
        there = [path for path in self.known if path not in self.failed]
        for path in there:
            ino, size = self.known[path]
            whole = {(ino, block) for block in range(block_count(size))}
            seen = self.seen_whole.get(path, set())
            assert whole <= seen or path in self.gone, f"{path!r} was not seen complete"
        if not self.gone:
            assert record.files_done == len(there), "each is counted once"
            assert record.bytes_done == sum(self.known[path][1] for path in there)
