"""What is handed out to whom: owners, priorities, leases, lost answers, shares of a bandwidth."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from cachefs.core.cluster import Work, Worked, decode_call, encode
from cachefs.core.jobs import (
    LEASE_S,
    TASK_BYTES,
    TASK_FILES,
    FileProgress,
    TaskKind,
    TaskResult,
)
from cachefs.core.model import ContentId, NamespaceId, Origin
from cachefs.core.placement import Member, Placement
from cachefs.core.policies import Rule
from master.state.task_dispatcher import Order, TaskDispatcher
from master.state.window import Slot, Window

NAMESPACE = NamespaceId(b"n" * 16)
ALL = 1 << 40
WALL_S = 1_700_000_000.0


def origin(ino: int, size: int = 1, replicas: int = 1) -> Origin:
    content = ContentId(NAMESPACE, ino, 0, 0)
    return Origin(content, "s3://b", b"f%d" % ino, "", size, 0, Rule(replicas=replicas))


class Table:
    """A desk, files that are put on it, workers that ask."""

    def __init__(self, *workers: str) -> None:
        self.desk = TaskDispatcher("run")
        self.window = Window()
        self.ino = 0
        if workers:
            self.place(*workers)

    def place(self, *workers: str) -> None:
        self.desk.place(Placement([Member(one, "", 1.0) for one in workers]), workers)

    def put(
        self, job: int, count: int, size: int = 1, replicas: int = 1, *, load: bool = True
    ) -> int:
        """How many parts have no owner."""
        parts = []
        for _ in range(count):
            self.ino += 1
            slot = Slot(0, b"f%d" % self.ino, origin(self.ino, size, replicas))
            parts += self.window.open(slot, load=load)
        return len(self.desk.add(job, parts))

    def ask(
        self, worker: str, *done: int, now: float = 0.0, room: int = ALL, seen: int = -1,
        run: str = "run",
    ) -> Worked:  # fmt: skip
        call = Work(worker, run, [TaskResult(number, 0) for number in done], room, 0.0, seen)
        self.settled = self.desk.settle(call, now)
        return self.desk.hand_out(call, now, WALL_S)[0]


def files(worked: Worked) -> list[int]:
    return [one.origin.content.ino for task in worked.tasks for one in task.files]


def test_small_files_come_in_batches_and_big_ones_alone() -> None:
    it = Table()
    it.desk.begin(Order(1))
    it.put(1, 150)
    it.put(1, 3, size=TASK_BYTES)
    sizes = [len(task.files) for task in it.ask("any").tasks]
    assert sizes == [TASK_FILES, TASK_FILES, 150 - 2 * TASK_FILES + 1, 1, 1]


def test_each_part_goes_to_its_owner() -> None:
    it = Table("a", "b", "c")
    it.desk.begin(Order(1))
    assert it.put(1, 300, replicas=2, load=False) == 0
    got = {name: files(it.ask(name)) for name in "abc"}
    placement = Placement([Member(one, "", 1.0) for one in "abc"])
    for ino in range(1, 301):
        owners = {member.id for member in placement.owners(ino, 0, 2)}
        assert {name for name in got if ino in got[name]} == owners
    assert it.put(1, 5, replicas=9, load=False) == 5 * 6, "there are three workers"


def test_the_next_in_rank_after_all_owners_stands_in() -> None:
    it = Table("a", "b", "c")
    it.desk.begin(Order(1))
    slot = Slot(0, b"f", origin(7, replicas=2))
    (part,) = it.window.open(slot, load=True)
    assert it.desk.add(1, [part.again(stands_in=True)]) == []
    placement = Placement([Member(one, "", 1.0) for one in "abc"])
    third = placement.owners(7, 0, 3)[2].id
    assert [name for name in "abc" if files(it.ask(name))] == [third]


def test_without_another_worker_the_owner_stands_in_itself() -> None:
    it = Table("a")
    it.desk.begin(Order(1))
    (part,) = it.window.open(Slot(0, b"f", origin(7)), load=True)
    assert it.desk.add(1, [part.again(stands_in=True)]) == [], "it does not count as done"
    assert files(it.ask("a")) == [7]


def test_what_is_loaded_comes_to_its_first_owner_and_from_there_to_the_others() -> None:
    it = Table("a", "b", "c")
    it.desk.begin(Order(1))
    window, slot = it.window, Slot(0, b"f", origin(7, replicas=3))
    first = window.open(slot, load=True)
    assert [part.rank for part in first] == [0]
    later = window.part_done(first[0])
    assert [part.rank for part in later] == [1, 2]
    assert not slot.settled
    assert [window.part_done(part) for part in later] == [[], []]
    assert slot.settled
    assert (window.ahead_files, window.ahead_bytes) == (1, 1)


def test_room_is_not_passed_by_more_than_a_task() -> None:
    it = Table()
    it.desk.begin(Order(1))
    it.put(1, 500)
    assert it.ask("w", room=0).tasks == []
    assert len(it.ask("w", room=1).tasks) == 1
    assert len(it.ask("w", room=5 << 20).tasks) == 2, "small files count 64 KiB each"


def test_higher_priority_is_first_and_equals_share() -> None:
    it = Table()
    for job, priority in ((1, "low"), (2, "normal"), (3, "normal")):
        it.desk.begin(Order(job, priority))
        it.put(job, 10 * TASK_FILES)
    given: Counter[int] = Counter()
    for _ in range(10):
        given.update(task.job for task in it.ask("w", room=1).tasks)
    assert given == {2: 5, 3: 5}
    it.desk.begin(Order(4, "high"))
    it.put(4, 1)
    assert [task.job for task in it.ask("w", room=1).tasks] == [4]


def test_a_new_job_does_not_catch_up_on_an_old_one() -> None:
    it = Table()
    it.desk.begin(Order(1))
    it.put(1, 100 * TASK_FILES)
    for _ in range(50):
        it.ask("w", room=1)
    it.desk.begin(Order(2))
    it.put(2, 100 * TASK_FILES)
    given = Counter(task.job for _ in range(20) for task in it.ask("w", room=1).tasks)
    assert given[1] >= 9


def test_an_outcome_counts_once_and_only_in_its_run() -> None:
    it = Table()
    it.desk.begin(Order(1))
    it.put(1, 1)
    number = it.ask("w").tasks[0].number
    it.ask("other", number)
    assert it.settled == []
    it.ask("w", number, run="earlier")
    assert it.settled == [], "a number of another run is another task's"
    number = it.ask("w", seen=0).tasks[0].number
    it.ask("w", number)
    assert len(it.settled) == 1
    it.ask("w", number)
    assert it.settled == []


def test_tasks_that_did_not_arrive_come_again() -> None:
    it = Table()
    it.desk.begin(Order(1))
    it.put(1, TASK_FILES)
    first = it.ask("w", seen=0)
    it.put(1, TASK_FILES)
    lost = it.ask("w", seen=1)
    again = it.ask("w", seen=first.tasks[-1].number)
    assert again.tasks == lost.tasks
    assert it.ask("w", seen=lost.tasks[-1].number).tasks == []


def test_a_worker_that_began_anew_gets_what_it_had() -> None:
    it = Table("a", "b")
    it.desk.begin(Order(1))
    it.put(1, 50)
    had = files(it.ask("a"))
    assert had
    assert files(it.ask("a")) == []
    assert files(it.ask("a", run="")) == had


def test_the_silent_lose_their_tasks_and_the_busy_keep_them() -> None:
    it = Table()
    it.desk.begin(Order(1))
    it.put(1, 2 * TASK_FILES)
    silent = files(it.ask("silent", room=1, now=0.0))
    busy = files(it.ask("busy", room=1, now=1.0))
    it.ask("busy", room=0, now=LEASE_S - 1)
    it.desk.expire(LEASE_S)
    assert files(it.ask("third", now=LEASE_S)) == silent
    assert len(busy) == TASK_FILES


def test_what_waits_and_what_a_lost_worker_has_goes_to_other_owners() -> None:
    it = Table("a", "b")
    it.desk.begin(Order(1))
    it.put(1, 200)
    it.ask("a", room=1)
    it.place("b", "c")
    assert sorted(files(it.ask("b")) + files(it.ask("c"))) == list(range(1, 201))
    it.place()
    it.put(1, 1)
    assert it.ask("b").tasks == []
    it.place("d")
    assert 201 in files(it.ask("d"))


def test_nothing_is_wanted_of_a_job_that_ended() -> None:
    it = Table()
    it.desk.begin(Order(1))
    it.desk.begin(Order(2))
    it.put(1, 200)
    number = it.ask("w", room=1).tasks[0].number
    it.desk.tell("w")
    assert not it.desk.is_news("w")
    it.desk.end(1)
    assert it.desk.is_news("w")
    worked = it.ask("w", number)
    assert (it.settled, worked.tasks, worked.running) == ([], [], {2: 0})


@pytest.mark.parametrize(("kind", "verify"), [(TaskKind.CHECK, False), (TaskKind.VERIFY, True)])
def test_what_a_task_says(kind: TaskKind, verify: bool) -> None:
    it = Table()
    it.desk.begin(Order(1, check=kind, hold_s=60.0, hold_read=verify))
    slot = Slot(0, b"f", origin(9))
    it.desk.add(1, it.window.open(slot, load=True))
    it.desk.add(1, it.window.parts(slot, load=False))
    load, check = it.ask("w").tasks
    assert (load.kind, load.hold_until_s, load.hold_read) == (TaskKind.LOAD, WALL_S + 60, verify)
    assert (check.kind, check.hold_until_s) == (kind, 0.0)


def test_a_bandwidth_is_shared_by_what_is_to_do() -> None:
    it = Table()
    it.desk.begin(Order(1, bandwidth_bytes_s=1000))
    it.put(1, 3, size=TASK_BYTES)
    assert it.ask("a", room=1).running == {1: 1000}, "the only one gets all"
    assert it.ask("b", room=1).running[1] < 50, "that one has not heard that it has less now"
    shares = [it.ask(name, room=0).running[1] for name in "ab"]
    assert shares == [500, 500]
    it.put(1, 40, size=TASK_BYTES)
    it.ask("a")
    few, many = it.ask("b", room=0).running[1], it.ask("a", room=0).running[1]
    assert few == pytest.approx(1000 / 16, rel=0.1), "at least a sixteenth"
    assert few + many <= 1000


@pytest.mark.parametrize("seed", range(5))
def test_the_shares_in_force_are_never_more_than_the_bandwidth(seed: int) -> None:
    """Whoever asks when, and gets or ends whatever: but for the least that each one gets."""
    random = Random(seed)
    names = [f"w{n}" for n in range(random.choice([2, 3, 8]))]
    it = Table(*names)
    it.desk.begin(Order(1, bandwidth_bytes_s=1000))
    has: dict[str, list[int]] = {name: [] for name in names}
    told = dict.fromkeys(names, 0)
    for _ in range(500):
        it.put(1, random.choice([0, 0, 1, 5]), size=random.choice([1, TASK_BYTES]))
        name = random.choice(names)
        done = [number for number in has[name] if random.random() < 0.5]
        worked = it.ask(name, *done, room=random.choice([0, 1, ALL]))
        has[name] = [number for number in has[name] if number not in done]
        has[name] += [task.number for task in worked.tasks]
        told[name] = worked.running[1]
        in_force = sum(told[one] for one in names if has[one])
        assert in_force <= 1000 * (1 + 1 / 16), f"seed {seed}: {told}"


def test_what_waits_for_others_counts_in_shares_of_a_bandwidth() -> None:
    """Each begins with a second's worth of its rate: all of it for each would be too much."""
    it = Table("a", "b")
    it.desk.begin(Order(1, bandwidth_bytes_s=1000))
    assert it.ask("a").running == {1: 1000}, "the only one that is known"
    assert [it.ask(name).running[1] for name in "ba"] == [500, 500], "nothing is known to be done"
    it.put(1, 200, size=TASK_BYTES)
    first, second = it.ask("a").running[1], it.ask("b").running[1]
    assert first + second <= 1000
    assert min(first, second) > 300, "both have about as much to do"


def report(it: Table, worker: str, *progress: FileProgress, run: str = "run") -> int:
    """The bytes in flight of job 1 after a worker's report."""
    it.desk.settle(Work(worker, run, [], 0, progress=[*progress]), 0.0)
    return it.desk.in_flight_bytes(1)


def test_a_report_replaces_the_one_before_and_ends_with_the_task() -> None:
    it = Table("a")
    it.desk.begin(Order(1))
    it.put(1, 2, size=TASK_BYTES)
    first, second = (task.number for task in it.ask("a").tasks)
    assert report(it, "a", FileProgress(first, 0, 1000), FileProgress(second, 0, 50)) == 1050
    assert report(it, "a", FileProgress(first, 0, 3000)) == 3000
    assert it.desk.in_flight_bytes(2) == 0, "another job"
    it.ask("a", first)
    assert it.desk.in_flight_bytes(1) == 0
    assert report(it, "a", FileProgress(first, 0, 3000)) == 0, "an old report, late"


def test_a_file_in_progress_is_never_complete() -> None:
    """Only the result of its task says so."""
    it = Table("a")
    it.desk.begin(Order(1))
    it.put(1, 1, size=TASK_BYTES)
    (task,) = it.ask("a").tasks
    for cached_bytes in (TASK_BYTES, 1 << 60):
        assert report(it, "a", FileProgress(task.number, 0, cached_bytes)) == TASK_BYTES - 1
    for wrong in (FileProgress(task.number, 1, 10), FileProgress(task.number, -1, 10)):
        assert report(it, "a", wrong) == 0
    assert report(it, "a", FileProgress(task.number, 0, -10)) == 0


def in_progress(*workers: str) -> tuple[Table, FileProgress]:
    """A large file that one of the workers loads; a thousand bytes of it are cached."""
    it = Table(*workers)
    it.desk.begin(Order(1))
    it.put(1, 1, size=TASK_BYTES)
    tasks = {name: it.ask(name).tasks for name in workers}
    ((owner, (task,)),) = ((name, tasks) for name, tasks in tasks.items() if tasks)
    progress = FileProgress(task.number, 0, 1000)
    assert report(it, owner, progress) == 1000
    return it, progress


def test_progress_is_dropped_with_the_worker_and_with_the_file() -> None:
    it, _ = in_progress("a", "b")
    it.desk.expire(LEASE_S)
    assert it.desk.in_flight_bytes(1) == 0, "its lease is over"
    it, _ = in_progress("a", "b")
    it.place("c")
    assert it.desk.in_flight_bytes(1) == 0, "it is lost"
    it, _ = in_progress("a")
    it.ask("a", run="", now=1.0)
    assert it.desk.in_flight_bytes(1) == 0, "it was started again"
    it, progress = in_progress("a")
    again = FileProgress(progress.number, 0, 2000)
    assert report(it, "a", again, run="another") == 1000, "of another run: ignored"
    it.desk.end(1)
    assert it.desk.in_flight_bytes(1) == 0, "the job is over"


def test_only_the_primary_owner_has_progress() -> None:
    """The other owners copy bytes that are counted already."""
    it = Table("a", "b")
    it.desk.begin(Order(1))
    slot = Slot(0, b"f", origin(1, TASK_BYTES, 2))
    (part,) = it.window.open(slot, load=True)
    assert it.desk.add(1, it.window.part_done(part)) == []
    ((name, (task,)),) = ((name, tasks) for name in "ab" if (tasks := it.ask(name).tasks))
    assert report(it, name, FileProgress(task.number, 0, 99)) == 0


def test_a_file_that_begins_again_has_no_progress() -> None:
    it = Table("a")
    it.desk.begin(Order(1))
    slot = Slot(0, b"f", origin(1, TASK_BYTES))
    it.desk.add(1, it.window.open(slot, load=True))
    (task,) = it.ask("a").tasks
    assert report(it, "a", FileProgress(task.number, 0, 99)) == 99
    it.window.begin_again(slot, origin(2, TASK_BYTES))
    assert it.desk.in_flight_bytes(1) == 0


def test_a_worker_that_reports_no_progress_is_an_older_one() -> None:
    class Earlier(msgspec.Struct, tag="Work"):
        worker: str
        run: str
        outcomes: list[TaskResult]
        room_bytes: int

    call = Work("w", "", [], 1, progress=[FileProgress(1, 0, 5)])
    assert decode_call(encode(call)) == call
    assert msgspec.msgpack.decode(encode(call), type=Earlier).worker == "w"
    earlier = decode_call(msgspec.msgpack.encode(Earlier("w", "", [], 1)))
    assert earlier == Work("w", "", [], 1)
