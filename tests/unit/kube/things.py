"""Objects of Kubernetes for tests of the controller."""

from __future__ import annotations

import itertools
from typing import Any

from cachefs.core.admin import Job, JobSettings
from cachefs.core.jobs import JobState
from cachefs.kube import dataset
from cachefs.kube.dataset import Dataset
from cachefs.kube.names import DATASETS, DRIVER, FINALIZER, GATE, PROVISIONERS, Object
from cachefs.kube.rules import Rules

MASTER = "m:1"
PATH = "/ml/one"
_uids = itertools.count(1)


def thing(spec: dict[str, Any] | None = None, **changes: Any) -> Object:
    """A Dataset. `changes`: of its metadata; `status` is that of the object."""
    status = changes.pop("status", None)
    metadata = {
        "name": "one", "namespace": "ml", "uid": "u1", "resourceVersion": "7", "generation": 1,
        "finalizers": [FINALIZER], **changes,
    }  # fmt: skip
    found: Object = {"metadata": metadata, "spec": {"source": "s3://b/p", **(spec or {})}}
    return found | ({"status": status} if status is not None else {})


def parsed(spec: dict[str, Any] | None = None, **changes: Any) -> Dataset:
    return dataset.parse(thing(spec, **changes), Rules(file_sources=True))


def job(state: JobState = JobState.LOADING, **changes: Any) -> Job:
    values: dict[str, Any] = {
        "job": 3, "state": state, "paths": [PATH], "path_count": 1,
        "settings": JobSettings(0, None, False, "normal"), **changes,
    }  # fmt: skip
    return Job(**values)


def pod(name: str = "p", names: str | None = "one", **spec: Any) -> Object:
    """A pod with our gate, in front of it another one."""
    gates = [{"name": "other"}, {"name": GATE}]
    annotations = {} if names is None else {DATASETS: names}
    return {
        "metadata": {
            "name": name, "namespace": "ml", "uid": f"pod-{name}", "annotations": annotations
        },
        "spec": {"schedulingGates": gates, **spec},
        "status": {"phase": "Pending"},
    }  # fmt: skip


def claim(annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """A claim of a class of ours, which waits for a volume."""
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data", "namespace": "ml", "uid": "c1",
            "annotations": {PROVISIONERS[0]: DRIVER, **(annotations or {})},
        },
        "spec": {
            "accessModes": ["ReadOnlyMany"], "storageClassName": "cachefs",
            "resources": {"requests": {"storage": "5Gi"}}, **spec,
        },
    }  # fmt: skip


def storage_class(**parameters: str) -> Object:
    return {
        "metadata": {"name": "cachefs"}, "provisioner": DRIVER, "reclaimPolicy": "Delete",
        "parameters": parameters,
    }  # fmt: skip
