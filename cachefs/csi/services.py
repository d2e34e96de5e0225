"""The gRPC services: Identity and Node of CSI, and the kubelet's Registration. They only translate:
messages into calls of the `Publisher`, and typed errors into status codes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import grpc

import cachefs
from cachefs.core.errors import (
    BadConfig,
    CacheFSError,
    DeadlineExceeded,
    InUse,
    NotADirectory,
    NotFound,
    Throttled,
    Unreachable,
    Unsupported,
)
from cachefs.csi.errors import VolumeLost
from cachefs.csi.generated import csi_pb2 as csi
from cachefs.csi.generated import registration_pb2 as registration
from cachefs.csi.publishing import Publish, Publisher
from cachefs.csi.shared_mounts import DRIVER

log = logging.getLogger(__name__)

PLUGIN_TYPE: Final = "CSIPlugin"
CSI_VERSIONS: Final = ("1.0.0",)  # the kubelet accepts any CSI 1.x
_CODES: Final[dict[type[CacheFSError], grpc.StatusCode]] = {
    BadConfig: grpc.StatusCode.INVALID_ARGUMENT,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    InUse: grpc.StatusCode.ABORTED,
    NotADirectory: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Throttled: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unreachable: grpc.StatusCode.UNAVAILABLE,
    Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
    VolumeLost: grpc.StatusCode.ABORTED,
}
Method = Callable[[Any], Any]


def identity() -> grpc.GenericRpcHandler:
    """Returns the Identity service."""
    return _service(
        "csi.v1.Identity",
        {
            "GetPluginInfo": (csi.GetPluginInfoRequest, _plugin_info),
            "GetPluginCapabilities": (
                csi.GetPluginCapabilitiesRequest,
                lambda _: csi.GetPluginCapabilitiesResponse(),
            ),
            "Probe": (csi.ProbeRequest, _probe),
        },
    )


def node(node_id: str, publisher: Publisher) -> grpc.GenericRpcHandler:
    """Returns the Node service. gRPC answers UNIMPLEMENTED to the methods that it lacks."""
    return _service(
        "csi.v1.Node",
        {
            "NodeGetInfo": (
                csi.NodeGetInfoRequest,
                lambda _: csi.NodeGetInfoResponse(node_id=node_id),
            ),
            "NodeGetCapabilities": (
                csi.NodeGetCapabilitiesRequest,
                lambda _: csi.NodeGetCapabilitiesResponse(),
            ),
            "NodePublishVolume": (csi.NodePublishVolumeRequest, _publish(publisher)),
            "NodeUnpublishVolume": (csi.NodeUnpublishVolumeRequest, _unpublish(publisher)),
        },
    )


def plugin_registration(endpoint: str) -> grpc.GenericRpcHandler:
    """Returns the Registration service. `endpoint`: the driver's socket, as the kubelet sees it."""
    info = registration.PluginInfo(
        type=PLUGIN_TYPE, name=DRIVER, endpoint=endpoint, supported_versions=CSI_VERSIONS
    )
    return _service(
        "pluginregistration.Registration",
        {
            "GetInfo": (registration.InfoRequest, lambda _: info),
            "NotifyRegistrationStatus": (registration.RegistrationStatus, _registered),
        },
    )


def _plugin_info(_: Any) -> Any:
    return csi.GetPluginInfoResponse(name=DRIVER, vendor_version=cachefs.__version__)


def _probe(_: Any) -> Any:
    reply = csi.ProbeResponse()
    reply.ready.value = True
    return reply


def _registered(request: Any) -> Any:
    if request.plugin_registered:
        log.info("the kubelet registered the driver")
    else:
        log.error("the kubelet refuses the driver: %s", request.error)
    return registration.RegistrationStatusResponse()


def _publish(publisher: Publisher) -> Method:
    def publish(request: Any) -> Any:
        _require(request.volume_id, "volume_id")
        _require(request.target_path, "target_path")
        _require(request.HasField("volume_capability"), "volume_capability")
        if request.volume_capability.HasField("block"):
            raise BadConfig("a volume is a file system, not a block device")
        flags = tuple(request.volume_capability.mount.mount_flags)
        context = dict(request.volume_context)
        publisher.publish(Publish(request.volume_id, request.target_path, context, flags))
        return csi.NodePublishVolumeResponse()

    return publish


def _unpublish(publisher: Publisher) -> Method:
    def unpublish(request: Any) -> Any:
        _require(request.volume_id, "volume_id")
        _require(request.target_path, "target_path")
        publisher.unpublish(request.target_path)
        return csi.NodeUnpublishVolumeResponse()

    return unpublish


def _require(value: object, name: str) -> None:
    if not value:
        raise BadConfig(f"{name} is missing")


def _service(name: str, methods: dict[str, tuple[Any, Method]]) -> grpc.GenericRpcHandler:
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(
            _translated(method, call),
            request_deserializer=request.FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )
        for method, (request, call) in methods.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def _translated(name: str, call: Method) -> Callable[[Any, grpc.ServicerContext], Any]:
    """Returns a method that ends the call with a status for a typed error."""

    def method(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return call(request)
        except CacheFSError as err:
            code, text = _CODES.get(type(err), grpc.StatusCode.INTERNAL), err.one_line()
        except OSError as err:
            code, text = grpc.StatusCode.INTERNAL, str(err)
        fields = {"method": name, "code": code.name}
        log.warning("%s: %s", name, text, extra={"fields": fields})
        return context.abort(code, text)

    return method
