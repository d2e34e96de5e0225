"""csi-sanity, the conformance suite of CSI drivers: every spec of Identity and Node that applies.

The specs that publish need a controller, which the driver has none of: the test serves one beside
the driver's own services.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from cachefs.csi import services
from cachefs.csi.deadlines import Probes
from cachefs.csi.driver import Listener
from cachefs.csi.generated import csi_pb2 as csi
from cachefs.csi.metrics import DriverMetrics
from cachefs.csi.publishing import THREADS, Publisher
from cachefs.csi.shared_mounts import SharedMounts
from tests.kube.csi_node import MASTER, CsiNode

ROOT: Final = Path(__file__).parents[2]
BUILD_S: Final = 600
RUN_S: Final = 30.0
APPLICABLE: Final = 13
# csi-sanity skips these itself: they are about capabilities that the driver does not have.
NOT_OURS: Final = (
    "NodeStageVolume not supported",
    "NodeUnstageVolume not supported",
    "NodeGetVolume not supported",
    "NodeExpandVolume not supported",
    "NodeGetVolumeHealth not supported",
    "NodeGetStorageHealth not supported",
    "Service does not have single node multi writer capability",
)


@pytest.fixture(scope="module")
def csi_sanity() -> str:
    """Returns the path of the binary, which is built once per machine."""
    script = str(ROOT / "scripts" / "csi-sanity")
    done = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True, timeout=BUILD_S)
    return done.stdout.strip()


@pytest.fixture
def endpoint() -> Iterator[Path]:
    """Serves the driver's services and a controller; yields the socket."""
    with tempfile.TemporaryDirectory(prefix="csi") as directory:
        node = CsiNode(Path(directory))
        spec, probes = node.spec(), Probes()
        publisher = Publisher(SharedMounts(spec.node), probes, DriverMetrics(), MASTER)
        path = Path(directory, "sanity.sock")
        listener = Listener(
            str(path),
            THREADS,
            _has_controller(),
            _controller(),
            services.identity(),
            services.node("node1", publisher),
        )
        listener.start()
        try:
            yield path
            assert [place for place in node.mounts() if "/plugins/" not in place] == []
        finally:
            probes.close()
            listener.stop()
            node.end()


def _has_controller() -> grpc.GenericRpcHandler:
    service = csi.PluginCapability.Service(type=csi.PluginCapability.Service.CONTROLLER_SERVICE)
    reply = csi.GetPluginCapabilitiesResponse(
        capabilities=[csi.PluginCapability(service=service)],
    )
    request = csi.GetPluginCapabilitiesRequest
    return _service("csi.v1.Identity", {"GetPluginCapabilities": (request, lambda _: reply)})


def _controller() -> grpc.GenericRpcHandler:
    rpc = csi.ControllerServiceCapability.RPC
    capability = csi.ControllerServiceCapability(rpc=rpc(type=rpc.CREATE_DELETE_VOLUME))
    capabilities = csi.ControllerGetCapabilitiesResponse(capabilities=[capability])
    return _service(
        "csi.v1.Controller",
        {
            "ControllerGetCapabilities": (
                csi.ControllerGetCapabilitiesRequest,
                lambda _: capabilities,
            ),
            "CreateVolume": (csi.CreateVolumeRequest, _create),
            "DeleteVolume": (csi.DeleteVolumeRequest, lambda _: csi.DeleteVolumeResponse()),
        },
    )


def _create(request: Any) -> Any:
    context = {"path": f"/{request.name}"}
    return csi.CreateVolumeResponse(
        volume=csi.Volume(volume_id=request.name, volume_context=context)
    )


def _service(name: str, methods: dict[str, tuple[Any, Any]]) -> grpc.GenericRpcHandler:
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(
            lambda message, _, call=call: call(message),
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        for method, (request, call) in methods.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def run_suite(binary: str, endpoint: Path) -> list[dict[str, Any]]:
    """Runs the suite, and returns the reports of its specs of Identity and Node."""
    directory = endpoint.parent
    report = directory / "report.json"
    done = subprocess.run(
        [
            binary,
            f"-csi.endpoint=unix://{endpoint}",
            f"-csi.mountdir={directory}/mount",
            f"-csi.stagingdir={directory}/stage",
            "-ginkgo.focus=Identity Service|Node Service",
            "-ginkgo.no-color",
            f"-ginkgo.json-report={report}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stdout
    (suite,) = json.loads(report.read_text())
    specs = [spec for spec in suite["SpecReports"] if spec["LeafNodeType"] == "It"]
    return [
        spec
        for spec in specs
        if spec["ContainerHierarchyTexts"][0].startswith(("Identity Service", "Node Service"))
    ]


@pytest.mark.timeout(BUILD_S)
def test_every_applicable_spec_passes_twice(csi_sanity: str, endpoint: Path) -> None:
    began_s = time.monotonic()
    for _ in range(2):
        specs = run_suite(csi_sanity, endpoint)
        skipped = [spec for spec in specs if spec["State"] == "skipped"]
        assert len(specs) - len(skipped) == APPLICABLE
        assert {spec["State"] for spec in specs} == {"passed", "skipped"}
        assert {spec["Failure"]["Message"] for spec in skipped} <= set(NOT_OURS)
    assert time.monotonic() - began_s < RUN_S
