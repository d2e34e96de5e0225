"""What the kubelet does with a CSI driver: finds its registration, publishes volumes with the pod's
names, publishes again, unpublishes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from cachefs.csi.generated import csi_pb2 as csi
from cachefs.csi.generated import registration_pb2 as registration

CALL_S: Final = 30.0
POD_PREFIX: Final = "csi.storage.k8s.io/"
READERS: Final = csi.VolumeCapability.AccessMode.MULTI_NODE_READER_ONLY


def call(socket: str, method: str, request: Any, reply: Any, limit_s: float = CALL_S) -> Any:
    """Calls a method of a gRPC server at a Unix socket. Raises grpc.RpcError."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        remote = channel.unary_unary(
            f"/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        return remote(request, timeout=limit_s, wait_for_ready=True)


class FakeKubelet:
    """A kubelet whose directory is `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.endpoint = ""

    def register(self) -> Any:
        """Registers the driver, and returns what it says of itself."""
        socket = str(self.directory / "plugins_registry" / "csi.cachefs.io-reg.sock")
        service = "pluginregistration.Registration"
        info = call(
            socket, f"{service}/GetInfo", registration.InfoRequest(), registration.PluginInfo
        )
        status = registration.RegistrationStatus(plugin_registered=True)
        call(
            socket,
            f"{service}/NotifyRegistrationStatus",
            status,
            registration.RegistrationStatusResponse,
        )
        self.endpoint = info.endpoint
        return info

    def target(self, pod: str) -> Path:
        return self.directory / "pods" / pod / "volumes" / "kubernetes.io~csi" / "data" / "mount"

    def publish(
        self,
        pod: str,
        attributes: Mapping[str, str],
        *,
        namespace: str = "team",
        volume_id: str = "",
        flags: Sequence[str] = (),
        limit_s: float = CALL_S,
    ) -> Path:
        """Publishes an inline volume, or the one of a static handle. Raises grpc.RpcError."""
        target = self.target(pod)
        target.parent.mkdir(parents=True, exist_ok=True)
        inline = "false" if volume_id else "true"
        names = {"pod.name": pod, "pod.namespace": namespace, "pod.uid": pod, "ephemeral": inline}
        capability = csi.VolumeCapability(
            mount=csi.VolumeCapability.MountVolume(mount_flags=flags),
            access_mode=csi.VolumeCapability.AccessMode(mode=READERS),
        )
        request = csi.NodePublishVolumeRequest(
            volume_id=volume_id or f"csi-{pod}",
            target_path=str(target),
            volume_capability=capability,
            readonly=True,
            volume_context={**attributes, **{POD_PREFIX + k: v for k, v in names.items()}},
        )
        self.node("NodePublishVolume", request, csi.NodePublishVolumeResponse, limit_s)
        return target

    def unpublish(self, pod: str, limit_s: float = CALL_S) -> None:
        """Unpublishes the volume of a pod. Raises grpc.RpcError."""
        request = csi.NodeUnpublishVolumeRequest(
            volume_id=f"csi-{pod}", target_path=str(self.target(pod))
        )
        self.node("NodeUnpublishVolume", request, csi.NodeUnpublishVolumeResponse, limit_s)

    def node(self, method: str, request: Any, reply: Any, limit_s: float = CALL_S) -> Any:
        return call(self.endpoint, f"csi.v1.Node/{method}", request, reply, limit_s)


@contextlib.contextmanager
def refused() -> Iterator[list[tuple[grpc.StatusCode, str]]]:
    """Yields a list that has the status and the text of the refused call after the block."""
    found: list[tuple[grpc.StatusCode, str]] = []
    try:
        yield found
    except grpc.RpcError as err:
        found.append((err.code(), err.details()))
    assert found, "the driver did not refuse the call"


def sockets_below(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.is_socket()]


def mounts_below(directory: Path) -> list[str]:
    """Returns the mount points below a directory, in the order of the kernel."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if place.startswith(f"{os.path.realpath(directory)}/")]
