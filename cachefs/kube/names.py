"""The names that the controller has in common with users, with the CSI driver and with Kubernetes.
Pure."""

from __future__ import annotations

from typing import Any, Final

GROUP: Final = "cachefs.io"
VERSION: Final = "v1alpha1"
KIND: Final = "Dataset"
PLURAL: Final = "datasets"
DRIVER: Final = "csi.cachefs.io"  # of `cachefs csi`, and the provisioner of our StorageClasses
COMPONENT: Final = "cachefs-operator"  # in events; also the name of the Lease
FINALIZER: Final = f"{GROUP}/dataset"
GATE: Final = f"{GROUP}/loaded"
DATASETS: Final = f"{GROUP}/datasets"  # annotation of a pod: names, separated by commas
OWNER: Final = f"{GROUP}/dataset-uid"  # label of the volume and the claim of a Dataset
VOLUME: Final = f"{GROUP}/volume"  # label of every volume that the controller makes
SOURCE: Final = f"{GROUP}/source"  # annotation of a claim, if its class allows it
PATH: Final = f"{GROUP}/path"  # annotation of a claim
PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
PROVISIONERS: Final = (  # annotations by which Kubernetes requests a volume for a claim
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)

Object = dict[str, Any]  # an object of Kubernetes, decoded
Key = tuple[str, str]  # namespace, name


def key_of(thing: Object) -> Key:
    """Returns the namespace ("" if it has none) and the name of an object."""
    metadata = thing["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def namespaced(path: str, namespace: str) -> bool:
    """Returns whether a path of the cluster is that of a namespace, or below it."""
    return f"{path}/".startswith(f"/{namespace}/")
