"""The volume and the claim of a Dataset, and the volumes of claims of our StorageClasses. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from cachefs.core.addresses import SCHEME, is_cluster
from cachefs.core.errors import BadConfig
from cachefs.kube.dataset import Dataset
from cachefs.kube.names import (
    DRIVER,
    GROUP,
    KIND,
    OWNER,
    PATH,
    PROVISIONED_BY,
    PROVISIONERS,
    SOURCE,
    VERSION,
    VOLUME,
    Key,
    Object,
    key_of,
    namespaced,
)

READ_ONLY_MANY: Final = "ReadOnlyMany"
_SIZE: Final = "1Gi"  # Kubernetes requires one; a volume of this driver has none
_ENDED: Final = ("Succeeded", "Failed")
_LOOKS: Final = ("uid", "gid", "fileMode", "dirMode")  # attributes that a class may give
_OWN: Final = (
    "path",
    "source",
    "confine",
    "claimSources",
    "load",
    "profile",
    "credential",
    *_LOOKS,
)
_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")


class Missing(msgspec.Struct, frozen=True):
    """An object must be created."""

    thing: Object


class Stale(msgspec.Struct, frozen=True):
    """An object must be deleted."""

    thing: Object


class Leaving(msgspec.Struct, frozen=True):
    """An object is being deleted."""


class Taken(msgspec.Struct, frozen=True):
    """An object of another owner has the name."""

    text: str


class Ready(msgspec.Struct, frozen=True):
    text: str


def volume_name(dataset: Dataset) -> str:
    return f"cachefs-{dataset.uid}"


def volume_of(dataset: Dataset, master: str) -> Object:
    """Returns the volume of a Dataset, for its claim alone."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name(dataset),
            "labels": {OWNER: dataset.uid, VOLUME: "dataset"},
        },
        "spec": {
            "capacity": {"storage": _SIZE},
            "accessModes": [READ_ONLY_MANY],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": dataset.namespace,
                "name": dataset.name,
            },
            "csi": {
                "driver": DRIVER,
                "volumeHandle": f"{SCHEME}{master}{dataset.path}",
                "readOnly": True,
            },
        },
    }


def claim_of(dataset: Dataset) -> Object:
    """Returns the claim of a Dataset: of its name, in its namespace."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": dataset.name,
            "namespace": dataset.namespace,
            "labels": {OWNER: dataset.uid},
        },
        "spec": {
            "accessModes": [READ_ONLY_MANY],
            "storageClassName": "",
            "volumeName": volume_name(dataset),
            "resources": {"requests": {"storage": _SIZE}},
        },
    }


Change = Missing | Stale | Leaving | Taken | Ready


def change(dataset: Dataset, volume: Object | None, claim: Object | None, master: str) -> Change:
    """Returns what the volume and the claim of a Dataset need. A claim that was deleted and made
    again needs another volume: a volume is bound once."""
    if claim is not None and not _is_of(claim, dataset):
        return Taken(f"the claim {dataset.name} exists and is not of this Dataset")
    if _is_leaving(volume) or _is_leaving(claim):
        return Leaving()
    if volume is None:
        return Missing(volume_of(dataset, master)) if claim is None else Stale(claim)
    if claim is None:
        return Stale(volume) if _was_bound(volume) else Missing(claim_of(dataset))
    return Ready(f"the claim {dataset.name} is of the volume {volume_name(dataset)}")


def left_over(dataset: Dataset, volume: Object | None, claim: Object | None) -> Change | None:
    """Returns what is left of the claim and then of the volume; None for nothing."""
    own = [one for one in (claim, volume) if one is not None and _is_of(one, dataset)]
    if not own:
        return None
    return Leaving() if _is_leaving(own[0]) else Stale(own[0])


def _is_of(thing: Object, dataset: Dataset) -> bool:
    return bool((thing["metadata"].get("labels") or {}).get(OWNER) == dataset.uid)


def _is_leaving(thing: Object | None) -> bool:
    return thing is not None and "deletionTimestamp" in thing["metadata"]


def _was_bound(volume: Object) -> bool:
    return "uid" in (volume["spec"].get("claimRef") or {})


class Refused(msgspec.Struct, frozen=True):
    """A claim that gets no volume; `cause`: for people."""

    cause: str


class Given(msgspec.Struct, frozen=True):
    """The volume of a claim, and the Dataset that attaches its source; None: it names a path."""

    volume: Object
    dataset: Object | None


def is_ours(claim: Object) -> bool:
    """Returns whether Kubernetes waits for this controller to make a volume for a claim."""
    metadata, spec = claim["metadata"], claim.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    return (
        any(annotations.get(name) == DRIVER for name in PROVISIONERS)
        and not spec.get("volumeName")
        and "deletionTimestamp" not in metadata
    )


def is_released(volume: Object) -> bool:
    """Returns whether a volume that this controller provisioned has lost its claim and must be
    deleted."""
    metadata, spec = volume["metadata"], volume.get("spec") or {}
    return (
        (metadata.get("annotations") or {}).get(PROVISIONED_BY) == DRIVER
        and (volume.get("status") or {}).get("phase") == "Released"
        and spec.get("persistentVolumeReclaimPolicy") == "Delete"
        and "deletionTimestamp" not in metadata
    )


def provision(claim: Object, storage_class: Object) -> Given | Refused:
    """Returns the volume of a claim, as its class and its annotations describe it."""
    try:
        _check_claim(claim)
        if storage_class.get("provisioner") != DRIVER:  # a claim's author writes its annotations
            raise BadConfig("the StorageClass of the claim is of another driver")
        return _given(claim, storage_class)
    except BadConfig as err:
        return Refused(err.one_line())


def _check_claim(claim: Object) -> None:
    spec = claim["spec"]
    if spec.get("accessModes") != [READ_ONLY_MANY]:
        raise BadConfig("volumes of this class are read by many", remedy=f"use {READ_ONLY_MANY}")
    if spec.get("volumeMode", "Filesystem") != "Filesystem":
        raise BadConfig("volumes of this class are file systems, not block devices")
    for name in ("selector", "dataSource", "dataSourceRef"):
        if spec.get(name):
            raise BadConfig(f"a claim of this class has no {name}")


def _given(claim: Object, storage_class: Object) -> Given:
    parameters = _parameters(storage_class)
    namespace, name = key_of(claim)
    annotations = claim["metadata"].get("annotations") or {}
    values = {"pvc.namespace": namespace, "pvc.name": name}
    source = _source(parameters, annotations, values)
    if source:
        path = f"/{namespace}/{name}"
    else:
        path = annotations.get(PATH) or _expanded(parameters.get("path", ""), values)
    path = _checked(path, namespace, parameters)
    made = _dataset(claim, source, parameters) if source else None
    return Given(_volume(claim, storage_class, path), made)


def _parameters(storage_class: Object) -> Mapping[str, str]:
    parameters: Mapping[str, str] = storage_class.get("parameters") or {}
    unknown = sorted(parameters.keys() - set(_OWN))
    if unknown:
        raise BadConfig(
            f"the StorageClass has an unknown parameter {unknown[0]!r}",
            remedy=f"known: {', '.join(_OWN)}",
        )
    return parameters


def _source(
    parameters: Mapping[str, str], annotations: Mapping[str, str], values: Mapping[str, str]
) -> str:
    given = annotations.get(SOURCE, "")
    if given and parameters.get("claimSources") != "true":
        raise BadConfig(
            f"claims of this class may not name a source ({SOURCE})",
            remedy='an administrator may set the parameter claimSources: "true" of the class',
        )
    return given or _expanded(parameters.get("source", ""), values)


def _expanded(text: str, values: Mapping[str, str]) -> str:
    def value_of(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise BadConfig(f"{text}: unknown variable {found[0]}", remedy=", ".join(values))
        return values[found[1]]

    return _VARIABLE.sub(value_of, text)


def _checked(path: str, namespace: str, parameters: Mapping[str, str]) -> str:
    """Returns the path without empty parts. Raises BadConfig for one that is refused."""
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or {".", ".."} & set(parts) or not path.isprintable():
        raise BadConfig(f"not a path of the cluster: {path!r}", remedy="write it as /a/b")
    path = "/" + "/".join(parts)
    if parameters.get("confine") != "false" and not namespaced(path, namespace):
        raise BadConfig(
            f"{path} is not below /{namespace}",
            remedy='an administrator may set the parameter confine: "false" of the class',
        )
    return path


def _volume(claim: Object, storage_class: Object, path: str) -> Object:
    metadata, parameters = claim["metadata"], storage_class.get("parameters") or {}
    looks = {name: parameters[name] for name in _LOOKS if name in parameters}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"pvc-{metadata['uid']}",
            "labels": {VOLUME: "claim"},
            "annotations": {PROVISIONED_BY: DRIVER},
        },
        "spec": {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": [READ_ONLY_MANY],
            "storageClassName": storage_class["metadata"]["name"],
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
            "mountOptions": storage_class.get("mountOptions") or [],
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            # A pod may have two claims of one path: each volume has its own handle.
            "csi": {
                "driver": DRIVER,
                "volumeHandle": f"pvc-{metadata['uid']}",
                "readOnly": True,
                "volumeAttributes": {"path": path, **looks},
            },
        },
    }


def _dataset(claim: Object, source: str, parameters: Mapping[str, str]) -> Object:
    """Returns the Dataset that attaches the source of a claim, and that is deleted with it."""
    metadata = claim["metadata"]
    owner = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    spec: dict[str, Any] = {
        "source": source,
        "load": {"enabled": parameters.get("load") == "true"},
    }
    named = {"profile": "profile", "name": "credential"}
    credentials = {key: parameters[name] for key, name in named.items() if parameters.get(name)}
    if credentials:
        spec["credentials"] = credentials
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def claims_of(path: str, volumes: Iterable[Object]) -> set[Key]:
    """Returns the claims of those volumes that show a path of the cluster, or something below
    it."""
    found = set()
    for volume in volumes:
        spec = volume.get("spec") or {}
        claim = spec.get("claimRef") or {}  # people may write one without a namespace
        key = (claim.get("namespace", ""), claim.get("name", ""))
        if claim and _shows(spec.get("csi") or {}, key[0], path):
            found.add(key)
    return found


def _shows(csi: Mapping[str, Any], namespace: str, path: str) -> bool:
    """Returns whether a volume of a claim in a namespace shows a path."""
    if csi.get("driver") != DRIVER:
        return False
    handle, attributes = csi.get("volumeHandle", ""), csi.get("volumeAttributes") or {}
    shown = attributes.get("path", "")
    if is_cluster(handle):
        shown = "/" + handle[len(SCHEME) :].partition("/")[2]
    if attributes.get("namespaced") == "true":
        shown = f"/{namespace}/{shown}"
    return _is_below(shown, path)


def _is_below(shown: str, path: str) -> bool:
    parts = "/".join(part for part in shown.split("/") if part)
    return f"/{parts}/".startswith(f"{path}/")


def users_of(
    path: str, claims: set[Key], pods: Iterable[Object], *, is_confined: bool = False
) -> tuple[str, ...]:
    """Returns NAMESPACE/NAME of the pods that run with a volume of a path. A pod that was not
    scheduled, or has ended, has none. `is_confined`: `cachefs csi --confine` runs on the nodes."""
    used = [
        "/".join(key_of(pod))
        for pod in pods
        if (pod.get("spec") or {}).get("nodeName")
        and (pod.get("status") or {}).get("phase") not in _ENDED
        and any(_uses(pod, volume, path, claims, is_confined) for volume in _volumes_of(pod))
    ]
    return tuple(sorted(used))


def _volumes_of(pod: Object) -> Iterable[Mapping[str, Any]]:
    return pod["spec"].get("volumes") or ()


def _uses(
    pod: Object, volume: Mapping[str, Any], path: str, claims: set[Key], is_confined: bool
) -> bool:
    namespace, name = key_of(pod)
    claim = volume.get("persistentVolumeClaim") or {}
    if claim:
        return (namespace, claim.get("claimName")) in claims
    if volume.get("ephemeral"):
        return (namespace, f"{name}-{volume['name']}") in claims
    csi = volume.get("csi") or {}
    attributes = csi.get("volumeAttributes") or {}
    shown = attributes.get("path", "")
    below = f"/{namespace}/{shown}"  # as `namespaced`, or `cachefs csi --confine`, shows it
    found = _is_below(below, path) or (not is_confined and _is_below(shown, path))
    return csi.get("driver") == DRIVER and found
