"""Each step of a Dataset follows from its object and from what was seen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cachefs.core.jobs import JobState
from cachefs.core.policies import Policy
from cachefs.kube import steps, volumes
from cachefs.kube.dataset import Dataset
from cachefs.kube.names import FINALIZER
from cachefs.kube.status import Phase, Status, Type
from cachefs.kube.steps import Attached, Failure, Master, Objects, Plan, Seen, plan
from tests.unit.kube.things import MASTER, PATH, job, parsed

HERE = Master(sources={PATH: Attached("s3://b/p")})
GONE = "2026-01-01T00:00:00Z"


def with_status(dataset: Dataset, status: Status) -> Dataset:
    return msgspec.structs.replace(dataset, status=status)


def attached(spec: dict[str, Any] | None = None, **changes: Any) -> Dataset:
    """A Dataset whose source and policies are at the master."""
    found = parsed(spec)
    status = Status(source="s3://b/p", attachments=1, policy=found.policy_mark(1))
    return with_status(found, status.told(Type.ATTACHED, True, "Attached").with_(**changes))


def loading(**changes: Any) -> Dataset:
    found = attached()
    known = {"job": 3, "job_key": "u1", "job_settings": found.job_settings}
    return attached(**{"phase": Phase.LOADING, **known, **changes})


def planned(dataset: Dataset, **seen: Any) -> Plan:
    return plan(dataset, Seen(**{"master": HERE, "is_master_new": True, **seen}), MASTER)


def test_the_finalizer_comes_first() -> None:
    assert planned(parsed(finalizers=[])).step == steps.AddFinalizer()


def test_nothing_is_decided_before_the_master_was_asked() -> None:
    assert planned(parsed(), master=None) == Plan(steps.Wait(), parsed().status)


def test_the_status_names_the_source_before_it_is_attached() -> None:
    found = planned(parsed(), master=Master())
    assert found.step == steps.Attach(PATH, "s3://b/p", {})
    assert found.is_written_first
    assert (found.status.source, found.status.attachments) == ("s3://b/p", 1)


def test_the_master_is_asked_before_a_path_is_taken() -> None:
    found = planned(parsed(), master=Master(), is_master_new=False)
    assert found == Plan(steps.LookAtMaster(), found.status)
    assert found.status.source == ""


def test_an_attachment_is_repeated_after_a_crash_and_counted_once() -> None:
    begun = with_status(parsed(), planned(parsed(), master=Master()).status)
    again = planned(begun, master=Master())
    assert (again.step, again.status.attachments) == (steps.Attach(PATH, "s3://b/p", {}), 1)


def test_a_source_that_nobody_of_ours_attached_is_left_alone() -> None:
    found = planned(parsed())
    told = found.status.condition(Type.ATTACHED)
    assert isinstance(found.step, steps.Wait)
    assert told is not None
    assert told.reason == "PathTaken"
    assert found.status.source == ""


def test_an_origin_that_does_not_answer_is_retried_and_its_cause_told() -> None:
    failure = Failure(steps.Attach, "unreachable", "no route to s3")
    found = planned(parsed(), master=Master(), failure=failure)
    told = found.status.condition(Type.ATTACHED)
    assert found.step == steps.Wait(steps.RETRY)
    assert found.status.phase is Phase.PENDING
    assert told is not None
    assert (told.reason, told.message) == ("Unreachable", "no route to s3")


@pytest.mark.parametrize("dataset", [parsed(), attached(), loading()])
def test_a_master_that_is_away_is_told_and_changes_nothing_else(dataset: Dataset) -> None:
    found = planned(dataset, master=Master("no answer", HERE.sources))
    told = found.status.condition(Type.MASTER)
    assert found.step == steps.Wait(steps.RETRY)
    assert told is not None
    assert (told.status, told.message) == ("False", "no answer")
    assert found.status.phase is dataset.status.phase


def test_a_source_that_was_lost_is_attached_and_loaded_again() -> None:
    lost = loading(phase=Phase.LOADED)
    found = planned(lost, master=Master())
    assert isinstance(found.step, steps.Attach)
    assert found.status.attachments == 2
    assert found.status.phase is Phase.PENDING
    assert lost.job_key(2) != lost.job_key(1)


def test_policies_are_set_once_and_again_when_they_change() -> None:
    old = attached().status
    changed = with_status(parsed({"policies": {"pin": True}}), old)
    assert planned(changed).step == steps.SetPolicy(PATH, changed.policy)
    after = planned(changed, is_policy_set=True)
    assert isinstance(after.step, steps.Submit)
    assert after.status.policy == changed.policy_mark(1)


def test_no_status_says_that_policies_are_set_which_are_being_replaced() -> None:
    """A controller that ends behind the call finds what the former spec set once more in the spec
    after the next, and must set it."""
    old = attached()
    changed = with_status(parsed({"policies": {"pin": True}}), old.status)
    plan = planned(changed)
    assert plan.is_written_first
    assert plan.status.policy == ""
    assert planned(with_status(old, plan.status)).step == steps.SetPolicy(PATH, old.policy)


def test_policies_that_were_changed_at_the_master_are_set_back() -> None:
    found = attached({"policies": {"pin": True}})
    changed = planned(found, policy=Policy(pin=False))
    assert changed.step == steps.SetPolicy(PATH, found.policy, is_changed=True)
    assert isinstance(planned(found, policy=found.policy).step, steps.Submit)
    after = planned(found, policy=Policy(), is_policy_set=True)
    assert isinstance(after.step, steps.Submit)


def test_the_load_has_the_uid_as_its_key() -> None:
    assert planned(attached()).step == steps.Submit(attached().job, "u1")


def test_a_submitted_load_is_followed() -> None:
    found = planned(attached(), submitted=3, submitted_key="u1")
    assert found.step == steps.LookAtJob(3)
    assert (found.status.job, found.status.phase) == (3, Phase.LOADING)


@pytest.mark.parametrize(
    ("state", "phase", "again_s"),
    [
        (JobState.LOADING, Phase.LOADING, steps.FOLLOW_S),
        (JobState.VERIFYING, Phase.LOADING, steps.FOLLOW_S),
        (JobState.STOPPED, Phase.LOADING, steps.STOPPED_S),
        (JobState.FAILED, Phase.FAILED, steps.FAILED_S),
        (JobState.SUCCEEDED, Phase.LOADED, 0.0),
    ],
)
def test_the_phase_is_that_of_the_job(state: JobState, phase: Phase, again_s: float) -> None:
    seen = job(state, message="its own words", files_found=9, bytes_found=100, bytes_done=50)
    found = planned(loading(), job=seen)
    told = found.status.condition(Type.LOADED)
    assert (found.step, found.status.phase) == (steps.Wait(again_s), phase)
    assert told is not None
    assert told.message == "its own words"
    assert (found.status.files, found.status.cached) == (9, "50 % of 100 B")


def test_a_loaded_dataset_needs_nothing() -> None:
    assert planned(loading(phase=Phase.LOADED)).step == steps.Wait()


def test_a_greater_revision_starts_another_load() -> None:
    done = loading(phase=Phase.LOADED)
    again = msgspec.structs.replace(done, spec=parsed({"load": {"revision": 2}}).spec)
    found = planned(again).step
    assert isinstance(found, steps.Submit)
    assert found.key == "u1.2.1"


def test_another_bandwidth_changes_the_load_that_runs() -> None:
    found = planned(loading(job_settings="old"), job=job()).step
    assert isinstance(found, steps.Submit)
    assert found.key.startswith("u1.")
    done = planned(loading(job_settings="old"), job=job(JobState.SUCCEEDED))
    assert isinstance(done.step, steps.Wait)


def test_a_load_waits_for_its_turn_while_the_master_runs_many() -> None:
    failure = Failure(steps.Submit, "throttled", "64 jobs are not finished, the limit")
    found = planned(attached(), failure=failure)
    told = found.status.condition(Type.LOADED)
    assert (found.step, found.status.phase) == (steps.Wait(steps.TURN_S), Phase.PENDING)
    assert told is not None
    assert (told.reason, told.message) == ("WaitsForLoads", failure.cause)


def test_failed_files_are_told_with_where_their_causes_are() -> None:
    found = job(JobState.FAILED, message="2 of 3 files could not be loaded", files_failed=2)
    told = planned(loading(), job=found).status.condition(Type.LOADED)
    assert told is not None
    assert told.message.startswith("2 of 3 files could not be loaded; ")
    assert "`cachefs jobs show 3 --failures`" in told.message
    assert "`cachefs jobs retry 3`" in told.message


def test_a_forgotten_load_starts_again_unless_it_failed() -> None:
    assert isinstance(planned(loading(), is_job_gone=True).step, steps.Submit)
    assert planned(loading(phase=Phase.FAILED), is_job_gone=True).step == steps.Wait()


def test_a_job_of_other_paths_is_not_that_of_the_dataset() -> None:
    """A master whose store was restored uses the numbers of lost jobs again."""
    others = job(JobState.SUCCEEDED, paths=["/ml/two"])
    assert isinstance(planned(loading(), job=others).step, steps.Submit)


def test_a_dataset_without_a_load_is_attached() -> None:
    found = attached({"load": {"enabled": False}})
    assert planned(found) == Plan(steps.Wait(), planned(found).status.with_(phase=Phase.ATTACHED))


def test_a_bad_spec_is_told_and_leaves_what_was_made() -> None:
    fresh = planned(parsed({"load": {"bandwidth": "fast"}}))
    assert (fresh.step, fresh.status.phase) == (steps.Wait(), Phase.FAILED)
    loaded = msgspec.structs.replace(loading(phase=Phase.LOADED), problem="bad")
    found = planned(loaded)
    assert (found.step, found.status.phase) == (steps.Wait(), Phase.LOADED)
    assert not found.status.holds(Type.ACCEPTED)


# ---- the volume ----------------------------------------------------------------------------------


def volume_plan(volume: Any, claim: Any) -> Plan:
    return planned(attached({"volume": {"create": True}}), objects=Objects(volume, claim))


def test_the_volume_comes_before_the_claim_and_the_load() -> None:
    dataset = attached({"volume": {"create": True}})
    volume, claim = volumes.volume_of(dataset, MASTER), volumes.claim_of(dataset)
    assert planned(dataset).step == steps.LookAtObjects()
    assert volume_plan(None, None).step == steps.Create(volume)
    assert volume_plan(volume, None).step == steps.Create(claim)
    assert isinstance(volume_plan(volume, claim).step, steps.Submit)
    assert volume["spec"]["csi"]["volumeHandle"] == f"cachefs://{MASTER}{PATH}"


def test_a_claim_of_somebody_else_is_left_alone() -> None:
    found = volume_plan(None, {"metadata": {"name": "one"}})
    told = found.status.condition(Type.VOLUME)
    assert isinstance(found.step, steps.Wait)
    assert told is not None
    assert told.reason == "NameTaken"


def test_a_volume_whose_claim_was_deleted_is_made_anew() -> None:
    volume = volumes.volume_of(parsed(), MASTER)
    volume["spec"]["claimRef"]["uid"] = "gone"
    assert volume_plan(volume, None).step == steps.Remove(volume)
    leaving = volume | {"metadata": volume["metadata"] | {"deletionTimestamp": GONE}}
    assert volume_plan(leaving, None).step == steps.Wait(steps.GONE_S)


# ---- the end -------------------------------------------------------------------------------------


def removed(**seen: Any) -> Plan:
    dataset = msgspec.structs.replace(loading(), is_deleting=True)
    return plan(dataset, Seen(**seen), MASTER)


NOTHING = Objects(None, None)


def test_pods_that_use_the_data_are_named_and_keep_it() -> None:
    assert removed().step == steps.LookAtPods()
    users = tuple(f"ml/p{number}" for number in range(12))
    found = removed(users=users)
    told = found.status.condition(Type.REMOVABLE)
    assert found.step == steps.Wait(steps.PODS_S)
    assert told is not None
    assert told.reason == "InUse"
    assert "ml/p0, ml/p1" in told.message
    assert told.message.endswith("and 2 more")


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.05, steps.PODS_S), (1.0, 20.0), (9.0, 60.0)])
def test_all_pods_are_looked_at_more_rarely_where_they_are_many(
    took_s: float, pause_s: float
) -> None:
    assert removed(users=("ml/p",), users_s=took_s).step == steps.Wait(pause_s)


def test_everything_that_was_made_is_removed_in_turn() -> None:
    dataset = loading()
    volume, claim = volumes.volume_of(dataset, MASTER), volumes.claim_of(dataset)
    assert removed(users=(), objects=Objects(volume, claim)).step == steps.Remove(claim)
    assert removed(users=(), objects=Objects(volume, None)).step == steps.Remove(volume)
    done: dict[str, Any] = {"users": (), "objects": NOTHING}
    for name, step in (
        ("are_jobs_ended", steps.EndJobs(PATH)),
        ("is_policy_unset", steps.UnsetPolicy(PATH)),
        ("is_detached", steps.Detach(PATH)),
    ):
        assert removed(**done).step == step
        done[name] = True
    assert removed(**done).step == steps.RemoveFinalizer()


def test_a_dataset_that_made_nothing_needs_no_master_to_end() -> None:
    dataset = parsed(deletionTimestamp=GONE)
    found = plan(dataset, Seen(users=(), objects=NOTHING), MASTER)
    assert found.step == steps.RemoveFinalizer()


def test_the_end_waits_for_a_master_that_is_away() -> None:
    failure = Failure(steps.EndJobs, "unreachable", "no answer", is_away=True)
    found = removed(users=(), objects=NOTHING, failure=failure)
    assert found.step == steps.Wait(steps.RETRY)
    assert not found.status.holds(Type.MASTER)


def test_objects_of_others_stay() -> None:
    other = {"metadata": {"name": "one", "namespace": "ml", "uid": "x"}}
    assert removed(users=(), objects=Objects(None, other)).step == steps.EndJobs(PATH)


def test_without_the_finalizer_nothing_is_done() -> None:
    dataset = parsed(deletionTimestamp=GONE, finalizers=["other"])
    assert plan(dataset, Seen(), MASTER).step == steps.Wait()
    assert FINALIZER not in dataset.finalizers
