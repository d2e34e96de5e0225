"""The next step of a Dataset: from its object and from what was seen, to one change. Pure.

`plan` decides. The controller takes the step, reads its result and calls `plan` again, until the
step is `Wait`. It writes the status of a plan with a `Wait`, and before `Attach`: the object names
what may have been made before it is made. So a controller that ends between any two steps leaves
nothing that the next one would not find, and every step may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cachefs.core.admin import Job
from cachefs.core.errors import Throttled
from cachefs.core.jobs import JobSpec, JobState
from cachefs.core.policies import Policy
from cachefs.kube import volumes
from cachefs.kube.dataset import Dataset
from cachefs.kube.names import FINALIZER, Object
from cachefs.kube.status import Phase, Status, Type

FOLLOW_S: Final = 1.0  # between two looks at a load that runs
STOPPED_S: Final = 5.0
FAILED_S: Final = 30.0  # an operator may retry the job
PODS_S: Final = 3.0  # between two looks at all pods
PODS_MOST_S: Final = 60.0
PODS_TIMES: Final = 20  # the pause after a look, in durations of the look
TURN_S: Final = 5.0  # until the master may take another load
GONE_S: Final = 1.0  # until the next look at a claim or a volume that is being deleted
TAKEN_S: Final = 30.0
RETRY: Final = -1.0  # after a time that grows with each failure
NAMED_PODS: Final = 10


class Attached(msgspec.Struct, frozen=True):
    """A source at the master. `warning`: for people."""

    url: str
    warning: str = ""


class Master(msgspec.Struct, frozen=True):
    """The master, as it answered last. `away`: why it does not answer, else ""."""

    away: str = ""
    sources: Mapping[str, Attached] = {}


class Failure(msgspec.Struct, frozen=True):
    """A step that failed. `step`: its type. `is_away`: the master did not answer."""

    step: type
    code: str
    cause: str
    is_away: bool = False


class Use(msgspec.Struct, frozen=True):
    """The files of a path that the master knows, and how much of them is cached."""

    files: int
    size_bytes: int
    cached_bytes: int


class Measured(msgspec.Struct, frozen=True):
    """What the master has at a path. `use`: None if it is not known."""

    use: Use | None
    policy: Policy


class Objects(msgspec.Struct, frozen=True):
    """The volume and the claim of a Dataset. None: there is none."""

    volume: Object | None
    claim: Object | None


class Seen(msgspec.Struct, frozen=True):
    """What was seen while one Dataset is handled. None: not looked at yet."""

    master: Master | None = None
    is_master_new: bool = False  # the master was read for this Dataset
    use: Use | None = None
    policy: Policy | None = None  # at the master, before `SetPolicy`
    job: Job | None = None
    is_job_gone: bool = False
    submitted: int = 0  # number of the job of the last `Submit`
    submitted_key: str = ""
    is_policy_set: bool = False
    objects: Objects | None = None
    users: tuple[str, ...] | None = None  # pods that use the data
    users_s: float = 0.0  # how long it took to find them
    are_jobs_ended: bool = False
    is_policy_unset: bool = False
    is_detached: bool = False
    failure: Failure | None = None


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do for this time; 0: until something changes; RETRY: see there."""

    after_s: float = 0.0


class AddFinalizer(msgspec.Struct, frozen=True):
    pass


class RemoveFinalizer(msgspec.Struct, frozen=True):
    pass


class LookAtMaster(msgspec.Struct, frozen=True):
    pass


class Attach(msgspec.Struct, frozen=True):
    path: str
    url: str
    options: dict[str, str]
    push: str = ""


class SetPolicy(msgspec.Struct, frozen=True):
    """Sets these policies at the path, and no other. `is_changed`: True if others were set at the
    master than the status has."""

    path: str
    policy: Policy
    is_changed: bool = False


class Submit(msgspec.Struct, frozen=True):
    job: JobSpec
    key: str


class LookAtJob(msgspec.Struct, frozen=True):
    job: int


class LookAtObjects(msgspec.Struct, frozen=True):
    pass


class Create(msgspec.Struct, frozen=True):
    thing: Object


class Remove(msgspec.Struct, frozen=True):
    thing: Object


class LookAtPods(msgspec.Struct, frozen=True):
    pass


class EndJobs(msgspec.Struct, frozen=True):
    """Stops and forgets every load job of the path."""

    path: str


class UnsetPolicy(msgspec.Struct, frozen=True):
    path: str


class Detach(msgspec.Struct, frozen=True):
    path: str


Step = (
    Wait | AddFinalizer | RemoveFinalizer | LookAtMaster | Attach | SetPolicy | Submit | LookAtJob
    | LookAtObjects | Create | Remove | LookAtPods | EndJobs | UnsetPolicy | Detach
)  # fmt: skip


class Plan(msgspec.Struct, frozen=True):
    """A step, and the status up to there."""

    step: Step
    status: Status

    @property
    def is_written_first(self) -> bool:
        """Whether the status must be in the object before the step is taken."""
        return isinstance(self.step, Wait | Attach | SetPolicy)


def plan(dataset: Dataset, seen: Seen, master: str) -> Plan:
    """Returns what is next. `master`: HOST:PORT, for volumes."""
    if dataset.is_deleting:
        return _removal(dataset, seen)
    if FINALIZER not in dataset.finalizers:
        return Plan(AddFinalizer(), dataset.status)
    status = dataset.status.with_(path=dataset.path).without(Type.REMOVABLE)
    if dataset.problem:
        return Plan(Wait(), _refused(status, dataset.problem))
    status = status.without(Type.ACCEPTED)
    away = _away(seen)
    if away is not None:
        return Plan(Wait(RETRY), _told_away(status, away)) if away else Plan(Wait(), dataset.status)
    assert seen.master is not None
    return _kept(dataset, seen, status.told(Type.MASTER, True, "Reachable"), master)


def _refused(status: Status, problem: str) -> Status:
    """Returns the status for a spec that cannot be used. What was made before stays."""
    phase = status.phase if status.source else Phase.FAILED
    return status.told(Type.ACCEPTED, False, "BadSpec", problem).with_(phase=phase)


def _away(seen: Seen) -> str | None:
    """Returns why the master does not answer; "" if that is not known yet; None if it answers."""
    if seen.failure is not None and seen.failure.is_away:
        return seen.failure.cause
    if seen.master is None:
        return ""
    return seen.master.away or None


def _told_away(status: Status, cause: str) -> Status:
    return status.told(Type.MASTER, False, "MasterAway", cause)


def _kept(dataset: Dataset, seen: Seen, status: Status, master: str) -> Plan:
    """Plans the source, the policies, the volume and then the load."""
    assert seen.master is not None
    source = seen.master.sources.get(dataset.path)
    if source is None:
        return _attach(dataset, seen, status)
    if _is_of_others(source, status):
        text = f"another source is at {dataset.path} that no Dataset made"
        status = status.with_(source="", phase=Phase.PENDING).without(Type.LOADED)
        return Plan(Wait(TAKEN_S), status.told(Type.ATTACHED, False, "PathTaken", text))
    status = status.told(Type.ATTACHED, True, "Attached", source.warning)
    mark = dataset.policy_mark(status.attachments)
    if seen.is_policy_set:
        status = status.with_(policy=mark)
    elif status.policy != mark or _is_policy_changed(dataset, seen):
        return _policy(dataset, seen, status)
    if dataset.spec.volume.create:
        found = _volume(dataset, seen, status, master)
        if isinstance(found, Plan):
            return found
        status = found
    return _load(dataset, seen, status)


def _is_of_others(source: Attached, status: Status) -> bool:
    """Returns whether a source is not the one that the controller attaches. While that cannot be
    reached, or after an operator has removed it, another one may take the path."""
    return source.url.rstrip("/") != status.source.rstrip("/")


def _attach(dataset: Dataset, seen: Seen, status: Status) -> Plan:
    """Plans the attachment. The status names the source before it is attached, and only where no
    other source is."""
    if not status.source and not seen.is_master_new:
        return Plan(LookAtMaster(), status)
    if not status.source or status.holds(Type.ATTACHED):
        status = status.with_(
            source=dataset.spec.source, attachments=status.attachments + 1, phase=Phase.PENDING
        )
        status = status.told(Type.ATTACHED, False, "Attaching").without(Type.LOADED)
    spec = dataset.spec
    step = Attach(dataset.path, spec.source, spec.source_options, spec.push)
    failure = _failure(seen, Attach)
    if failure is None:
        return Plan(step, status)
    status = status.with_(phase=Phase.PENDING)
    return Plan(
        Wait(RETRY), status.told(Type.ATTACHED, False, _reason(failure.code), failure.cause)
    )


def _is_policy_changed(dataset: Dataset, seen: Seen) -> bool:
    """Returns whether the policies at the master are not those that the controller has set."""
    is_set = dataset.status.policy == dataset.policy_mark(dataset.status.attachments)
    return is_set and seen.policy is not None and seen.policy != dataset.policy


def _policy(dataset: Dataset, seen: Seen, status: Status) -> Plan:
    """Plans the policies. The status forgets the former ones before others are set: a controller
    that ends in between must not find the mark of what is set no longer."""
    failure = _failure(seen, SetPolicy)
    if failure is None:
        is_changed = _is_policy_changed(dataset, seen)
        return Plan(SetPolicy(dataset.path, dataset.policy, is_changed), status.with_(policy=""))
    text = f"the policies cannot be set: {failure.cause}"
    return Plan(Wait(RETRY), status.told(Type.ATTACHED, True, _reason(failure.code), text))


def _failure(seen: Seen, step: type) -> Failure | None:
    return seen.failure if seen.failure is not None and seen.failure.step is step else None


def _reason(code: str) -> str:
    """Returns a reason as Kubernetes writes it: `not-found` -> `NotFound`."""
    return "".join(word.capitalize() for word in code.split("-")) or "Failed"


def _volume(dataset: Dataset, seen: Seen, status: Status, master: str) -> Plan | Status:
    """Returns a plan for the volume and the claim; the status once both exist."""
    if seen.objects is None:
        if status.holds(Type.VOLUME):
            return status
        return _unless_failed(seen, LookAtObjects(), status)
    change = volumes.change(dataset, seen.objects.volume, seen.objects.claim, master)
    match change:
        case volumes.Taken(text):
            return Plan(Wait(TAKEN_S), status.told(Type.VOLUME, False, "NameTaken", text))
        case volumes.Leaving():
            return Plan(Wait(GONE_S), status.told(Type.VOLUME, False, "Replacing"))
        case volumes.Missing(thing):
            return _unless_failed(seen, Create(thing), status)
        case volumes.Stale(thing):
            return _unless_failed(seen, Remove(thing), status)
        case volumes.Ready(text):
            return status.told(Type.VOLUME, True, "Created", text)


def _unless_failed(seen: Seen, step: Step, status: Status) -> Plan:
    failure = _failure(seen, type(step))
    if failure is None:
        return Plan(step, status)
    return Plan(Wait(RETRY), status.told(Type.VOLUME, False, _reason(failure.code), failure.cause))


def _load(dataset: Dataset, seen: Seen, status: Status) -> Plan:
    if not dataset.spec.load.enabled:
        return Plan(Wait(), _told_use(status, seen.use).with_(phase=Phase.ATTACHED))
    key, settings = dataset.job_key(status.attachments), dataset.job_settings
    update = f"{key}.{settings}"
    if seen.submitted_key in (key, update):
        status = status.with_(job=seen.submitted, job_key=key, job_settings=settings)
        if status.phase is not Phase.LOADING:
            status = status.with_(phase=Phase.LOADING).told(Type.LOADED, False, "Loading")
    if status.job_key != key:
        return _submit(dataset, seen, status.with_(phase=Phase.PENDING), key)
    if status.phase is Phase.LOADED:
        return Plan(Wait(), status.with_cached(seen.use.cached_bytes) if seen.use else status)
    if seen.is_job_gone or _is_job_of_others(dataset, seen):
        return _resubmit(dataset, seen, status, key)
    if seen.job is None:
        return _unless_away(seen, LookAtJob(status.job), status)
    status, after_s = told_job(status, seen.job)
    if after_s and status.phase is Phase.LOADING and status.job_settings != settings:
        return _submit(dataset, seen, status, update)
    return Plan(Wait(after_s), status)


def _is_job_of_others(dataset: Dataset, seen: Seen) -> bool:
    """Returns whether the master has given the number to another load: its store was restored."""
    return seen.job is not None and seen.job.paths != [dataset.path]


def _told_use(status: Status, use: Use | None) -> Status:
    if use is None:
        return status
    return status.with_(files=use.files, bytes=use.size_bytes).with_cached(use.cached_bytes)


def _resubmit(dataset: Dataset, seen: Seen, status: Status, key: str) -> Plan:
    """Plans another job for one that the master was made to forget, unless it had failed."""
    if status.phase is Phase.FAILED:
        return Plan(Wait(), status)
    return _submit(dataset, seen, status, key)


def _submit(dataset: Dataset, seen: Seen, status: Status, key: str) -> Plan:
    failure = _failure(seen, Submit)
    if failure is None:
        return Plan(Submit(dataset.job, key), status)
    if failure.code == Throttled.code:
        return Plan(Wait(TURN_S), status.told(Type.LOADED, False, "WaitsForLoads", failure.cause))
    text = f"the load cannot be started: {failure.cause}"
    return Plan(Wait(RETRY), status.told(Type.LOADED, False, _reason(failure.code), text))


def _unless_away(seen: Seen, step: Step, status: Status) -> Plan:
    return Plan(step if _failure(seen, type(step)) is None else Wait(RETRY), status)


_REASONS: Final = {
    JobState.LOADING: "Loading",
    JobState.VERIFYING: "Verifying",
    JobState.STOPPED: "Stopped",
    JobState.FAILED: "LoadFailed",
    JobState.SUCCEEDED: "Loaded",
}


def told_job(status: Status, job: Job) -> tuple[Status, float]:
    """Returns the status with a job's state and figures, and when to look again; 0: never."""
    is_loaded = job.state is JobState.SUCCEEDED
    status = status.with_(
        files=job.files_found, bytes=job.bytes_found, failed_files=job.files_failed
    ).with_cached(job.bytes_done)
    status = status.told(Type.LOADED, is_loaded, _REASONS[job.state], _message(job))
    match job.state:
        case JobState.SUCCEEDED:
            return status.with_(phase=Phase.LOADED), 0.0
        case JobState.FAILED:
            return status.with_(phase=Phase.FAILED), FAILED_S
        case JobState.STOPPED:
            return status.with_(phase=Phase.LOADING), STOPPED_S
        case _:
            return status.with_(phase=Phase.LOADING), FOLLOW_S


def _message(job: Job) -> str:
    """Returns the job's own message, and where the causes of failed files are; without a message
    its figures once it has ended."""
    if job.state is JobState.FAILED and job.files_failed:
        number = job.job
        return (
            f"{job.message}; `cachefs jobs show {number} --failures` has the causes, "
            f"`cachefs jobs retry {number}` tries again"
        )
    if job.message or not job.state.has_ended:
        return job.message
    return f"job {job.job}: {job.files_done} of {job.files_found} files, {job.bytes_done} bytes"


def _removal(dataset: Dataset, seen: Seen) -> Plan:
    """Plans the removal of what was made, unless pods use the data."""
    status = dataset.status
    if FINALIZER not in dataset.finalizers:
        return Plan(Wait(), status)
    if seen.users is None:
        return _unless_away(seen, LookAtPods(), status)
    if seen.users:
        text = f"used by {in_words(seen.users)}"
        pause_s = min(PODS_MOST_S, max(PODS_S, PODS_TIMES * seen.users_s))
        return Plan(Wait(pause_s), status.told(Type.REMOVABLE, False, "InUse", text))
    status = status.told(Type.REMOVABLE, True, "Removing") if status.source else status
    if seen.objects is None:
        return _unless_away(seen, LookAtObjects(), status)
    left = volumes.left_over(dataset, seen.objects.volume, seen.objects.claim)
    if isinstance(left, volumes.Stale):
        return _unless_away(seen, Remove(left.thing), status)
    if isinstance(left, volumes.Leaving):
        return Plan(Wait(GONE_S), status)
    return _removal_at_master(dataset, seen, status)


def _removal_at_master(dataset: Dataset, seen: Seen, status: Status) -> Plan:
    source = seen.master.sources.get(dataset.path) if seen.master is not None else None
    is_left = not status.source or (source is not None and _is_of_others(source, status))
    steps: tuple[tuple[bool, Step], ...] = (
        (seen.are_jobs_ended, EndJobs(dataset.path)),
        (seen.is_policy_unset, UnsetPolicy(dataset.path)),
        (seen.is_detached, Detach(dataset.path)),
    )
    left = [step for is_done, step in steps if not is_done]
    if not left or is_left:
        return _unless_away(seen, RemoveFinalizer(), status)
    failure = _failure(seen, type(left[0]))
    if failure is None:
        return Plan(left[0], status)
    if failure.is_away:
        return Plan(Wait(RETRY), _told_away(status, failure.cause))
    return Plan(
        Wait(RETRY), status.told(Type.REMOVABLE, False, _reason(failure.code), failure.cause)
    )


def in_words(names: tuple[str, ...]) -> str:
    """Returns the names of pods for people, of many pods the first."""
    shown = ", ".join(names[:NAMED_PODS])
    more = len(names) - NAMED_PODS
    return f"{shown} and {more} more" if more > 0 else shown
