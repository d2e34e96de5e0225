"""A Dataset as the controller sees it: its object, decoded and checked. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from cachefs.core import policies
from cachefs.core.errors import BadConfig
from cachefs.core.jobs import JobSpec
from cachefs.core.policies import Policy
from cachefs.core.units import parse_duration, parse_size
from cachefs.kube import status as statuses
from cachefs.kube.dataset_spec import Load, Spec
from cachefs.kube.names import Key, Object
from cachefs.kube.rules import Rules
from cachefs.kube.status import Status

SYNC_INTERVAL_S: Final = 60.0  # of a source; a Dataset changes it by a policy
_DIGEST_DIGITS: Final = 16


class Dataset(msgspec.Struct, frozen=True):
    """A Dataset. `problem`: why its spec cannot be used, else ""; then `spec` is not complete."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    is_deleting: bool
    finalizers: tuple[str, ...]
    spec: Spec
    policy: Policy
    job: JobSpec
    status: Status
    document: dict[str, Any]  # the status as it is in the object
    problem: str = ""

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def path(self) -> str:
        """The path in the cluster's namespace."""
        return f"/{self.namespace}/{self.name}"

    def job_key(self, attachments: int) -> str:
        """Returns the idempotency key of the load: the object's uid for the first one."""
        again = (self.spec.load.revision, attachments)
        return self.uid if again in ((0, 0), (0, 1)) else f"{self.uid}.{again[0]}.{again[1]}"

    @property
    def job_settings(self) -> str:
        """A digest of what can be changed while the load runs."""
        return digest(msgspec.to_builtins(self.spec.load) | {"revision": 0})

    def policy_mark(self, attachments: int) -> str:
        """Returns a digest of the policies at one attachment of the source."""
        return digest([msgspec.to_builtins(self.policy), attachments])


def digest(value: Any) -> str:
    text = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:_DIGEST_DIGITS]


def parse(thing: Object, rules: Rules) -> Dataset:
    """Returns the Dataset of an object."""
    metadata = thing["metadata"]
    document = thing.get("status") or {}
    namespace = metadata["namespace"]
    path = f"/{namespace}/{metadata['name']}".encode()
    spec, policy, job, problem = Spec(""), Policy(), JobSpec((path,)), ""
    try:
        spec = msgspec.convert(thing.get("spec") or {}, Spec)
        rules.check(spec, namespace)
        policy, job = _policy(spec), _job(spec.load, path)
    except (BadConfig, msgspec.ValidationError) as err:
        problem = err.one_line() if isinstance(err, BadConfig) else str(err)
    return Dataset(
        namespace,
        metadata["name"],
        metadata["uid"],
        metadata.get("resourceVersion", ""),
        metadata.get("generation", 0),
        "deletionTimestamp" in metadata,
        tuple(metadata.get("finalizers") or ()),
        spec,
        policy,
        job,
        statuses.parse(document),
        document,
        problem,
    )


def _policy(spec: Spec) -> Policy:
    given = spec.policies
    policy = policies.parse(
        f"{key}={value}"
        for key, value in (
            ("ttl", given.ttl),
            ("quota", given.quota),
            ("sync_interval", spec.sync_interval),
            ("sync_background", given.sync_background),
        )
        if value is not None
    )
    same = ("pin", "replicas", "admission", "eviction", "local_copy", "profile")
    policy = msgspec.structs.replace(policy, **{name: getattr(given, name) for name in same})
    policies.check(policy)
    return policy


def _job(load: Load, path: bytes) -> JobSpec:
    bandwidth = load.bandwidth.removesuffix("/s")
    return JobSpec(
        (path,),
        parse_size(bandwidth) if bandwidth else 0,
        parse_duration(load.hold) if load.hold else None,
        load.verify,
        load.priority,
    )
