"""The decisions of a loader, without a loop: nothing is begun twice, told twice, or forgotten."""

from __future__ import annotations

import random

import pytest

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
from cachefs.core.model import PAGE_BYTES, ContentId, NamespaceId, Origin
from worker.loads.schedule import (
    LARGE_BYTES,
    LONG_S,
    NO_SPACE,
    PAGES_COST,
    PIECES,
    POLL_S,
    REQUESTS,
    RETRY_S,
    Action,
    Check,
    Checked,
    Drop,
    FileEnded,
    FileFetched,
    LoadFile,
    LoadSchedule,
    PollAnswered,
    PollMaster,
    Unanswered,
    WakeDue,
)

NAMESPACE = NamespaceId(b"n" * 16)
ROOM = Room(100, 20, 30, 40)


def file(ino: int, size: int = 1000, block: int = -1) -> TaskFile:
    content = ContentId(NAMESPACE, ino, 0, ino)
    return TaskFile(Origin(content, "u", b"f%d" % ino, "", size, 0), block)


def task(
    number: int, count: int, *, job: int = 1, size: int = 1000, kind: TaskKind = TaskKind.LOAD
) -> Task:
    return Task(number, job, kind, [file(number * 1000 + one, size) for one in range(count)])


def brought(actions: list[Action]) -> list[LoadFile]:
    return [one for one in actions if isinstance(one, LoadFile)]


def asked(actions: list[Action]) -> list[Work]:
    return [one.work for one in actions if isinstance(one, PollMaster)]


def nothing_more(loading: LoadSchedule, now: float, run: str = "run", jobs: int = 3) -> None:
    """The answer to the question that follows one that brought something."""
    loading.handle(PollAnswered(Worked(run, [], dict.fromkeys(range(1, jobs + 1), 0))), now)


def started(*tasks: Task, rate: int = 0) -> tuple[LoadSchedule, list[LoadFile]]:
    """A loader that was handed these at time 0, and then that there is no more."""
    loading = LoadSchedule("w")
    (first,) = asked(loading.handle(WakeDue(), 0.0))
    assert first == Work("w", "", [], first.room_bytes, LONG_S, 0)
    jobs = {one.job: rate for one in tasks}
    begun = brought(loading.handle(PollAnswered(Worked("run", [*tasks], jobs)), 0.0))
    if begun:
        assert loading.handle(PollAnswered(Worked("run", [], jobs)), 0.0) == []
    return loading, begun


def end(loading: LoadSchedule, one: LoadFile, now: float = 0.0, **said: object) -> list[Action]:
    size = one.file.origin.size
    return loading.handle(FileEnded(one.id, one.place, size, **said), now)  # type: ignore[arg-type]


def test_files_are_begun_in_order_while_requests_are_free() -> None:
    loading, begun = started(task(1, 20), task(2, REQUESTS))
    assert [one.file.origin.content.ino for one in begun] == [
        *range(1000, 1020),
        *range(2000, 2000 + REQUESTS - 20),
    ]
    (next_one,) = brought(end(loading, begun[3]))
    assert next_one.file.origin.content.ino == 2000 + REQUESTS - 20
    loading.check_invariants()


def test_what_waits_for_its_commit_makes_no_request() -> None:
    loading, begun = started(task(1, REQUESTS + 5))
    (more,) = brought(loading.handle(FileFetched(begun[0].id, begun[0].place), 0.0))
    assert more.place == REQUESTS
    assert brought(end(loading, begun[0])) == [], "its place was given away"
    loading.check_invariants()


@pytest.mark.parametrize(
    ("size", "requests"),
    [
        (PAGE_BYTES, 1),
        (PAGE_BYTES + 1, PAGES_COST),
        (LARGE_BYTES, PAGES_COST),
        (LARGE_BYTES + 1, PAGES_COST * PIECES),
    ],
)
def test_a_larger_file_counts_as_several_requests(size: int, requests: int) -> None:
    loading, begun = started(task(1, REQUESTS + 1, size=size))
    assert len(begun) == REQUESTS // requests
    loading.check_invariants()


def test_an_outcome_says_what_failed_and_what_was_fetched() -> None:
    loading, (one, two) = started(task(7, 2))
    end(loading, two, failure=FileFailure(1, "not-found", "gone"))
    (work,) = asked(end(loading, one, POLL_S))
    assert work.outcomes == [TaskResult(7, 2000, [FileFailure(1, "not-found", "gone")])]
    assert (work.run, work.seen, work.wait_s) == ("run", 7, LONG_S)


def test_what_was_told_and_not_heard_is_told_again() -> None:
    loading, (one,) = started(task(7, 1))
    (work,) = asked(end(loading, one, 1.0))
    assert asked(loading.handle(Unanswered(), 2.0)) == []
    assert loading.wake_at_s == 2.0 + RETRY_S
    (again,) = asked(loading.handle(WakeDue(), loading.wake_at_s))
    assert again.outcomes == work.outcomes


def test_a_task_that_comes_again_is_not_done_twice() -> None:
    loading, (one,) = started(task(7, 1))
    asked(loading.handle(WakeDue(), POLL_S))
    again = loading.handle(PollAnswered(Worked("run", [task(7, 1), task(8, 1)], {1: 0})), POLL_S)
    (fresh,) = brought(again)
    assert fresh.task.number == 8
    end(loading, one)
    loading.check_invariants()


def test_another_run_of_the_master_forgets_everything() -> None:
    loading, begun = started(task(7, 2))
    end(loading, begun[0])
    actions = loading.handle(PollAnswered(Worked("other", [task(7, 1)], {1: 0})), POLL_S)
    (fresh,) = brought(actions)
    assert Drop(begun[0].id) in actions
    assert fresh.id != begun[0].id
    nothing_more(loading, POLL_S, "other")
    end(loading, begun[1], POLL_S)  # of the old one: nobody hears of it
    (work,) = asked(end(loading, fresh, 2 * POLL_S))
    assert [one.number for one in work.outcomes] == [7]
    assert [one.fetched_bytes for one in work.outcomes] == [1000]
    loading.check_invariants()


def test_a_job_that_is_not_wanted_any_more_is_dropped_without_an_outcome() -> None:
    loading, begun = started(task(1, REQUESTS + 8), task(2, 3, job=2))
    loading.handle(WakeDue(), POLL_S)
    actions = loading.handle(PollAnswered(Worked("run", [], {2: 0})), POLL_S)
    assert Drop(begun[0].id) in actions
    assert not loading.wants(begun[0].id)
    later: list[LoadFile] = []
    for one in begun:
        later += brought(end(loading, one, POLL_S))
    assert {one.task.job for one in later} == {2}
    for one in later[:-1]:
        end(loading, one, POLL_S)
    (work,) = asked(end(loading, later[-1], 2 * POLL_S))
    assert [one.number for one in work.outcomes] == [2]
    loading.check_invariants()


def test_without_room_nothing_more_of_the_job_is_tried() -> None:
    loading, begun = started(task(1, REQUESTS + 2), task(2, 5), task(3, 1, job=2))
    actions = end(loading, begun[0], failure=FileFailure(0, NO_SPACE, "full"), room=ROOM)
    (other,) = brought(actions)
    assert other.task.job == 2, "another job goes on"
    works = asked(actions)
    for one in [*begun[1:], other]:
        works += asked(end(loading, one, POLL_S))
        if works:
            nothing_more(loading, POLL_S)
    works += asked(loading.handle(WakeDue(), 60.0))
    told = {one.number: one for work in works for one in work.outcomes}
    assert [one.place for one in told[1].failures] == [0, REQUESTS, REQUESTS + 1]
    assert [one.place for one in told[2].failures] == [0, 1, 2, 3, 4]
    assert told[1].room == told[2].room == ROOM
    loading.check_invariants()


def test_bandwidth_is_kept_by_what_came() -> None:
    loading, begun = started(task(1, 30, size=1000), rate=40_000)
    assert len(begun) == 5, "a tenth of a second's worth, and the one that goes into debt"
    assert loading.wake_at_s == pytest.approx(1000 / 40_000)
    more = brought(end(loading, begun[0], 0.01, failure=None))
    assert more == []
    actions = loading.handle(FileEnded(begun[1].id, begun[1].place, 0), 0.01)  # from a peer
    assert len(brought(actions)) == 1, "what did not come from the origin is given back"


def test_another_job_goes_on_while_one_waits_for_bandwidth() -> None:
    loading = LoadSchedule("w")
    loading.handle(WakeDue(), 0.0)
    tasks = [task(1, 30), task(2, 30, job=2)]
    begun = brought(loading.handle(PollAnswered(Worked("run", tasks, {1: 10_000, 2: 0})), 0.0))
    assert [one.task.job for one in begun].count(1) == 2
    assert [one.task.job for one in begun].count(2) == 30


def test_a_check_is_one_action_and_its_failures_are_told() -> None:
    loading = LoadSchedule("w")
    loading.handle(WakeDue(), 0.0)
    one = task(4, 10, kind=TaskKind.CHECK)
    actions = loading.handle(PollAnswered(Worked("run", [one], {1: 0})), 0.0)
    (check,) = [action for action in actions if isinstance(action, Check)]
    nothing_more(loading, 0.0)
    missing = [FileFailure(3, "missing", "it is not complete in the cache")]
    (work,) = asked(loading.handle(Checked(check.id, missing), 1.0))
    assert work.outcomes == [TaskResult(4, 0, missing)]


def test_a_master_that_answers_at_once_without_work_is_not_asked_in_a_loop() -> None:
    loading, _ = started()
    assert loading.wake_at_s == pytest.approx(POLL_S)
    assert asked(loading.handle(WakeDue(), 0.1)) == []
    assert asked(loading.handle(WakeDue(), POLL_S)) != []


def test_progress_is_of_files_of_several_pages_until_their_task_has_ended() -> None:
    """A file that has ended counts until the task has: else it would be lost for that time."""
    small, paged, large = file(1), file(2, 3 * PAGE_BYTES), file(3, 20 * PAGE_BYTES)
    loading, begun = started(Task(7, 1, TaskKind.LOAD, [small, paged, large]))
    cached = {2: PAGE_BYTES, 3: 5 * PAGE_BYTES}

    def progress() -> list[FileProgress]:
        return loading.progress(lambda one: cached[one.origin.content.ino])

    assert progress() == [FileProgress(7, 1, PAGE_BYTES), FileProgress(7, 2, 5 * PAGE_BYTES)]
    del cached[2]
    end(loading, begun[0])
    end(loading, begun[1])
    cached[3] = 20 * PAGE_BYTES
    loading.handle(FileFetched(begun[2].id, 2), 0.0)
    assert progress() == [FileProgress(7, 1, 3 * PAGE_BYTES), FileProgress(7, 2, 20 * PAGE_BYTES)]
    end(loading, begun[2])
    assert progress() == []


def test_failed_files_dropped_tasks_and_checks_have_no_progress() -> None:
    size = 2 * PAGE_BYTES
    checks = task(1, 2, size=size, kind=TaskKind.CHECK)
    loading, begun = started(checks, task(2, 2, size=size), task(3, 2, job=2, size=size))
    reported = {(one.number, one.place) for one in loading.progress(lambda file: 9)}
    assert reported == {(2, 0), (2, 1), (3, 0), (3, 1)}
    end(loading, begun[0], failure=FileFailure(0, "unreachable", "no"))
    loading.handle(PollAnswered(Worked("run", [], {1: 0})), 0.0)  # job 2 has ended
    assert loading.progress(lambda file: 9) == [FileProgress(2, 1, 9)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_task_is_told_once(seed: int) -> None:
    """A master in the test hands out tasks; answers get lost, jobs are cancelled."""
    rng = random.Random(seed)
    loading, now, number = LoadSchedule("w"), 0.0, 0
    given: dict[int, Task] = {}
    told: list[int] = []
    lost = 0
    running = {1: 0, 2: 5_000_000, 3: 0}
    begun: list[LoadFile | Check] = []
    question: Work | None = None

    def act(actions: list[Action]) -> None:
        nonlocal question
        for one in actions:
            if isinstance(one, PollMaster):
                assert question is None, "one question at a time"
                question = one.work
            elif isinstance(one, LoadFile | Check):
                begun.append(one)

    act(loading.handle(WakeDue(), now))
    for step in range(20_000):
        if step >= 400 and not given:
            break
        now += rng.random() / 4
        if question is not None and rng.random() < 0.5:
            asked_for, question = question, None
            told += [one.number for one in asked_for.outcomes if one.number in given]
            for one in asked_for.outcomes:
                given.pop(one.number, None)
            fresh = [one for one in given.values() if one.number > asked_for.seen]
            while step < 400 and rng.random() < 0.6 and asked_for.room_bytes > 0:
                number += 1
                kind = rng.choice([TaskKind.LOAD, TaskKind.LOAD, TaskKind.CHECK])
                job = rng.choice([*running])
                given[number] = task(number, rng.randint(1, 30), job=job, kind=kind)
                fresh.append(given[number])
            if step >= 300 and 3 in running:
                del running[3]
                given = {n: one for n, one in given.items() if one.job != 3}
                fresh = [one for one in fresh if one.job != 3]
            if rng.random() < 0.2:
                lost += 1
                act(loading.handle(Unanswered(), now))
            else:
                act(loading.handle(PollAnswered(Worked("run", fresh, dict(running))), now))
        elif begun:
            ended = begun.pop(rng.randrange(len(begun)))
            if isinstance(ended, Check):
                act(loading.handle(Checked(ended.id, []), now))
            else:
                if rng.random() < 0.5:
                    act(loading.handle(FileFetched(ended.id, ended.place), now))
                size = ended.file.origin.size
                act(loading.handle(FileEnded(ended.id, ended.place, size), now))
        else:
            act(loading.handle(WakeDue(), now))
        loading.check_invariants()
    assert len(told) == len(set(told)), f"seed {seed}: told twice"
    assert lost
    assert not given, f"seed {seed}: never told: {sorted(given)}"
