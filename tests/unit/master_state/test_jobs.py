"""One load job as a machine: its passes, its watermark, tries, ends, and what is durable."""

from __future__ import annotations

import pytest

from cachefs.core.errors import InUse, NotFound
from cachefs.core.jobs import FileFailure, FullQuota, JobSpec, JobState, Room, TaskResult
from cachefs.core.model import ContentId, NamespaceId, Origin
from cachefs.core.placement import BLOCK_BYTES, LARGEST_FILE_BYTES
from master.state import jobs
from master.state.job_record import JobRecord, Write, decode_record, encode_record
from master.state.jobs import AGAIN_S, MAX_ATTEMPTS, WRITE_S, Effects, Job
from master.state.task_dispatcher import TaskBatch
from master.state.window import Part, Position

NAMESPACE = NamespaceId(b"n" * 16)
NOW = 100.0


def origin(ino: int, size: int = 10) -> Origin:
    return Origin(ContentId(NAMESPACE, ino, 0, 0), "s3://b", b"f%d" % ino, "", size, 0)


def new(**values: object) -> Job:
    return Job(JobRecord(1, JobSpec(()), (b"a",), 1, 5.0, **values), NOW)  # type: ignore[arg-type]


def fed(job: Job, *inos: int, size: int = 10) -> list[Part]:
    """Files that are counted and fed, in this order."""
    job.counted(Position(0, b"f%d" % inos[-1]), len(inos), size * len(inos), 0, matched=True)
    return job.feed([(0, b"f%d" % ino, origin(ino, size)) for ino in inos])


def tell(
    job: Job, *parts: Part, code: str = "", room: Room | None = None, now: float = NOW
) -> Effects:
    """A worker had these in a task; with a code all of them failed."""
    pack = TaskBatch(1, load=True)
    for part in parts:
        pack.add(part)
    failures = [FileFailure(n, code, f"{code}!") for n in range(len(parts))] if code else []
    return job.settle(pack, TaskResult(1, 7, failures, room), now)


def write(job: Job, now: float = NOW) -> Write:
    job.hurry()
    found = job.take(now, 1000.0)
    assert found is not None
    job.wrote(found)
    return found


def second_pass(job: Job, *inos: int) -> list[Part]:
    job.counting_ended()
    job.fed()
    write(job)
    assert job.checks
    return job.feed([(0, b"f%d" % ino, origin(ino)) for ino in inos])


def test_the_watermark_waits_for_the_first_file() -> None:
    job = new()
    one, two, three = fed(job, 1, 2, 3)
    tell(job, three, two)
    assert (write(job).record.fed, job.record.files_done) == (Position(), 0)
    assert job.shown(NOW).files_done == 2, "people see them"
    tell(job, one)
    record = write(job).record
    assert (record.fed, record.files_done, record.bytes_done) == (Position(0, b"f3"), 3, 30)
    assert record.bytes_fetched == 14
    assert decode_record(encode_record(record)) == record


def test_success_needs_the_second_pass() -> None:
    job = new()
    tell(job, *fed(job, 1, 2))
    parts = second_pass(job, 1, 2)
    assert job.shown(NOW).state is JobState.VERIFYING
    assert not any(part.load for part in parts)
    job.fed()
    tell(job, parts[0])
    assert job.runs
    effects = tell(job, parts[1], code="missing")
    assert [part.load for part in effects.parts] == [True]
    tell(job, *effects.parts)
    assert job.record.state is JobState.SUCCEEDED
    assert job.shown(NOW).state is JobState.VERIFYING, "not before it is durable"
    write(job)
    shown = job.shown(NOW)
    assert (shown.state, shown.files_verified, shown.ended_at_s) == (JobState.SUCCEEDED, 2, 1000.0)


def test_what_is_missing_and_cannot_be_brought_is_a_failure() -> None:
    job = new()
    tell(job, *fed(job, 1, 2))
    parts = second_pass(job, 1, 2)
    job.fed()
    effects = tell(job, *parts, code="missing")
    tell(job, effects.parts[0], code="archived")
    tell(job, effects.parts[1])
    record = write(job).record
    assert (record.state, record.files_done, record.files_failed) == (JobState.FAILED, 1, 1)
    assert record.bytes_done == 10
    assert record.message == "1 of 2 files could not be loaded"


def test_what_may_pass_is_tried_again_later_and_not_for_ever() -> None:
    job, now = new(), NOW
    (part,) = fed(job, 1)
    for _ in range(MAX_ATTEMPTS - 1):
        assert tell(job, part, code="unreachable", now=now).parts == []
        assert job.tick(now + AGAIN_S / 2) == []
        now += AGAIN_S * MAX_ATTEMPTS
        (part,) = job.tick(now)
    tell(job, part, code="unreachable")
    (failure,) = write(job).failures
    assert (failure.code, failure.cause, failure.attempts) == ("unreachable", "unreachable!", 3)


def tries(code: str) -> list[bool]:
    """Fails a load until the file has failed: of each try, whether another worker stood in."""
    job, now = new(), NOW
    (part,) = fed(job, 1)
    found = [part.stands_in]
    while True:
        assert tell(job, part, code=code, now=now).parts == []
        now += AGAIN_S * MAX_ATTEMPTS
        again = job.tick(now)
        if not again:
            break
        (part,) = again
        found.append(part.stands_in)
    (failure,) = write(job, now).failures
    assert (failure.code, failure.attempts) == (code, len(found))
    return found


def test_an_owner_that_does_not_reach_the_origin_is_followed_by_who_stands_in() -> None:
    assert tries("unreachable") == [False, True, False]
    assert tries("deadline") == [False, True, False]
    assert tries("credentials-missing") == [False, True], "a retry alone would not help"
    assert tries("access-denied") == [False, True], "of its keys, or of the file"


def test_what_the_origin_replied_is_no_matter_of_the_worker() -> None:
    assert tries("throttled") == [False, False, False]
    assert tries("archived") == [False]


def test_each_block_has_its_own_tries() -> None:
    job = new()
    parts = fed(job, 1, size=9 * BLOCK_BYTES)
    tell(job, *parts, code="unreachable")
    again = job.tick(NOW + 100)
    assert len(again) == 9
    tell(job, *again)
    assert write(job).record.files_done == 1


def test_parts_of_an_earlier_version_mean_nothing() -> None:
    job = new()
    first, second = fed(job, 1, size=2 * BLOCK_BYTES)
    tell(job, first)
    effects = tell(job, second, code="stale")
    (slot,) = effects.look
    assert first.is_void
    (now_small,) = job.looked(slot, origin(2, 5), None).parts
    tell(job, second)
    tell(job, second, code="archived")
    assert write(job).record.files_done == 0
    tell(job, now_small)
    record = write(job).record
    assert (record.files_done, record.bytes_done, record.files_failed) == (1, 5, 0)


@pytest.mark.parametrize(
    ("err", "code"), [(None, "not-found"), (NotFound("the bucket"), "not-found")]
)
def test_what_is_gone_is_a_failure(err: NotFound | None, code: str) -> None:
    job = new()
    (part,) = fed(job, 1)
    (slot,) = tell(job, part, code="not-found").look
    job.looked(slot, None, err)
    assert [failure.code for failure in write(job).failures] == [code]


def test_no_room_ends_the_job_where_it_is_and_it_can_go_on() -> None:
    job = new()
    one, two, three = fed(job, 1, 2, 3)
    tell(job, one)
    tell(job, two, three, code="no-space", room=Room(1 << 30, 1 << 20, 5, 6))
    record = write(job).record
    assert (record.state, record.files_done, record.files_failed) == (JobState.FAILED, 1, 0)
    assert "20 B to go" in record.message
    assert "limit is 1 GiB, of which 1 MiB is held, 5 B pinned and 6 B in use" in record.message
    assert tell(job, three).parts == []
    job.control("resume", NOW, 0.0)
    assert (job.record.state, job.watermark) == (JobState.LOADING, Position(0, b"f1"))
    again = Job(write(job).record, NOW)
    assert again.runs


def refuse(job: Job, *parts: Part, used: int, path: bytes = b"a") -> None:
    """A quota of 1,000 refuses these."""
    pack = TaskBatch(1, load=True)
    for part in parts:
        pack.add(part)
    quota = FullQuota(path, 1000, used, 1000)
    failures = [FileFailure(n, "no-space", "full", quota) for n in range(len(parts))]
    job.settle(pack, TaskResult(1, 0, failures), NOW, "w")


def test_a_file_that_is_too_large_for_what_a_quota_leaves_fails_alone() -> None:
    job = new()
    refuse(job, *fed(job, 1), used=600)
    assert job.runs
    assert job.record.files_failed == 1


def test_a_full_quota_below_which_only_some_lies_costs_the_files_that_it_refuses() -> None:
    job = new()
    refuse(job, *fed(job, 1), used=1000, path=b"a/b")
    assert job.runs
    assert job.record.files_failed == 1


def test_a_full_quota_above_all_that_is_left_ends_the_job_which_can_go_on() -> None:
    job = new()
    one, two, three = fed(job, 1, 2, 3)
    refuse(job, one, used=600)
    tell(job, two)
    refuse(job, three, used=990)
    record = write(job).record
    assert (record.state, record.files_done, record.files_failed) == (JobState.FAILED, 1, 1)
    assert "the quota of /a is full: 990 B of 1000 B are used, 20 B to go; give" in record.message
    assert job.watermark == Position(0, b"f2")
    job.control("resume", NOW, 0.0)
    assert (job.record.state, job.record.files_failed) == (JobState.LOADING, 0), "all once more"
    (again,) = fed(job, 3)
    refuse(job, again, used=500)
    assert job.runs, "what was said before means nothing"


def test_more_than_a_quota_ends_before_it_is_loaded() -> None:
    job = new()
    job.counted(Position(0, b"f"), 1, 600, 1200, matched=True)
    job.keeps_to([(b"", 1300), (b"a", 1200)], owners=2)
    assert job.runs
    job.keeps_to([(b"", 1300), (b"a", 1199)], owners=2)
    why = "does not fit: it needs at least 1.17 KiB, the quota of /a is 1.17 KiB; give a larger"
    assert why in job.record.message
    assert job.record.again


def test_what_cannot_fit_ends_before_it_is_loaded() -> None:
    job = new()
    job.counted(Position(0, b"f"), 1, 600, 1200, matched=True)
    job.has_room(1200, owners=2)
    job.has_room(600, owners=1)  # which has one copy, whatever is asked
    assert job.runs
    job.has_room(1199, owners=2)
    assert job.record.message.startswith("stopped before it was loaded, it does not fit: it needs")
    assert job.record.again


def test_a_stop_is_for_good_and_what_is_told_later_means_nothing() -> None:
    job = new()
    parts = fed(job, 1, 2)
    job.control("stop", NOW + 5, 0.0)
    record = write(job, NOW + 5).record
    assert (record.state, record.worked_s) == (JobState.STOPPED, 5.0)
    tell(job, *parts)
    assert (job.record.files_done, job.tick(NOW + 50)) == (0, [])
    assert Job(record, NOW).record.state is JobState.STOPPED
    assert job.shown(NOW + 100).elapsed_s == 5.0
    job.control("stop", NOW, 0.0)
    with pytest.raises(InUse):
        job.control("retry", NOW, 0.0)
    job.control("forget", NOW, 0.0)


def test_progress_is_durable_at_most_once_a_second_or_after_many_files() -> None:
    job = new()
    tell(job, *fed(job, 1))
    assert job.take(NOW + WRITE_S / 2, 0.0) is None
    found = job.take(NOW + WRITE_S, 0.0)
    assert found is not None
    job.not_written(found)
    (retried,) = [job.take(NOW + WRITE_S, 0.0)]
    assert retried is not None
    job.wrote(retried)
    assert job.take(NOW + 9 * WRITE_S, 0.0) is None
    tell(job, *fed(job, *range(2, 2 + jobs.WRITE_FILES)))
    assert job.take(NOW + WRITE_S, 0.0) is not None


def test_failures_of_a_write_that_failed_are_written_later() -> None:
    job = new()
    tell(job, *fed(job, 1), code="archived")
    found = job.take(NOW + WRITE_S, 0.0)
    assert found is not None
    job.not_written(found)
    assert len(write(job).failures) == 1
    assert write_nothing(job)


def write_nothing(job: Job) -> bool:
    return job.take(NOW + 100, 0.0) is None


def test_too_many_failures_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_FAILURES", 3)
    job = new()
    tell(job, *fed(job, 1, 2), code="archived")
    assert job.runs
    job.note(b"d", NotFound("gone"))
    record = write(job).record
    assert (record.state, record.files_failed) == (JobState.FAILED, 3)
    assert "3 failed files, the limit" in record.message
    job.control("resume", NOW, 0.0)
    assert (job.runs, job.record.round, job.record.files_failed) == (True, 1, 0)


def test_an_estimate_is_made_when_all_is_counted_and_something_was_done() -> None:
    job = new()
    parts = fed(job, 1, 2, 3, 4)
    tell(job, parts[0])
    assert job.shown(NOW + 1).eta_s is None
    job.counting_ended()
    shown = job.shown(NOW + 2)
    assert (shown.rate_bytes_s, shown.eta_s) == (5.0, 6.0)


def test_bytes_of_a_file_in_progress_are_shown_with_a_rate_and_an_estimate() -> None:
    job = new()
    parts = fed(job, 1, 2, size=1000)
    job.counting_ended()
    assert job.shown(NOW + 1, in_flight_bytes=0).eta_s is None
    shown = job.shown(NOW + 2, in_flight_bytes=400)
    assert (shown.bytes_done, shown.files_done, shown.bytes_fetched) == (400, 0, 0)
    assert (shown.rate_bytes_s, shown.eta_s) == (200.0, 8.0), "no file has ended yet"
    job.tick(NOW + 2, 400)
    tell(job, parts[0])
    shown = job.shown(NOW + 4, in_flight_bytes=0)
    assert (shown.bytes_done, shown.files_done) == (1000, 1)
    assert job.shown(NOW + 4, in_flight_bytes=999).bytes_done == 1999
    assert write(job).record.bytes_done == 1000, "what is in progress is not recorded"


def test_progress_that_is_dropped_is_no_rate() -> None:
    job = new()
    fed(job, 1, size=1000)
    job.counting_ended()
    job.tick(NOW + 1, 500)
    shown = job.shown(NOW + 2, in_flight_bytes=0)
    assert (shown.bytes_done, shown.rate_bytes_s, shown.eta_s) == (0, 0.0, None)


def test_checks_have_no_bytes_in_progress() -> None:
    """The second pass loads again what is missing; its bytes were counted in the first."""
    job = new()
    tell(job, *fed(job, 1, 2, size=1000))
    second_pass(job, 1, 2)
    job.tick(NOW + 1)
    shown = job.shown(NOW + 2, in_flight_bytes=500)
    assert (shown.bytes_done, shown.rate_bytes_s) == (2000, 0.0)


def test_retry_begins_a_round_of_failures() -> None:
    job = new()
    tell(job, *fed(job, 1, 2)[:1], code="archived")
    with pytest.raises(InUse):
        job.control("retry", NOW, 0.0)
    job.control("stop", NOW, 0.0)
    write(job)
    job.control("resume", NOW, 0.0)
    tell(job, *job.feed([(0, b"f2", origin(2))]))
    parts = second_pass(job, 2)
    job.fed()
    tell(job, *parts)
    assert write(job).record.state is JobState.FAILED
    job.control("retry", NOW, 0.0)
    record = write(job).record
    assert (record.state, record.round, record.files_failed) == (JobState.VERIFYING, 1, 0)
    assert (record.counted, record.checked, record.ended_at_s) == (Position(), Position(), 0.0)


def test_a_file_of_an_absurd_size_fails_without_a_part_for_each_block() -> None:
    """A sparse file, or what a store reports."""
    job = new()
    assert fed(job, 1, size=LARGEST_FILE_BYTES + 1) == []
    (part,) = fed(job, 2)
    tell(job, part)
    written = write(job)
    assert (written.record.files_failed, written.record.files_done) == (1, 1)
    assert [failure.code for failure in written.failures] == ["file-too-large"]


def test_a_file_that_becomes_absurdly_large_ends_no_job() -> None:
    job = new()
    (part,) = fed(job, 1)
    (slot,) = tell(job, part, code="stale").look
    assert job.looked(slot, origin(1, LARGEST_FILE_BYTES + 1), None).parts == []
    job.counting_ended()
    job.fed()
    assert job.checks, "the first pass has ended"


def test_the_sum_of_absurd_sizes_can_be_recorded() -> None:
    job = new()
    for number in range(3):
        job.counted(Position(0, b"f%d" % number), 1, (1 << 63) - 1, 1 << 63, matched=True)
    record = write(job).record
    assert decode_record(encode_record(record)) == record
