"""The driver's process: its gRPC servers, its reconciler and its metrics, from `start` to `stop`.

It keeps no state. `stop` leaves all mounts: the holder and the processes that serve keep them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc
import msgspec

from cachefs.core.errors import BadConfig
from cachefs.csi import services
from cachefs.csi.deadlines import Probes
from cachefs.csi.metrics import DriverMetrics
from cachefs.csi.publishing import ANSWER_S, THREADS, Publisher
from cachefs.csi.reconciler import Reconciler
from cachefs.csi.shared_mounts import DRIVER, Node, SharedMounts
from cachefs.launcher.metrics_page import KEEP_S, MetricsPage
from cachefs.network.socket_name import SocketName

log = logging.getLogger(__name__)

UNIX: Final = "unix:"
STOP_S: Final = 1.0  # for calls that run
EXIT_S: Final = 1.8  # then the process ends, whatever still runs
_REGISTRATION_THREADS: Final = 2


class DriverSpec(msgspec.Struct, frozen=True):
    """A driver: what `cachefs csi` is given."""

    node: Node
    node_id: str
    master: str  # HOST:PORT
    endpoint: str  # unix:PATH
    registration_dir: str
    linger_s: float = 60.0
    metrics: str = ""  # as of `MetricsPage`; "": none
    confine: bool = False  # inline volumes are below the namespace of their pod
    answer_s: float = ANSWER_S

    @property
    def socket(self) -> str:
        """The path of the endpoint. Raises BadConfig."""
        path = self.endpoint.removeprefix(UNIX)
        if not self.endpoint.startswith(UNIX) or not path.startswith("/"):
            raise BadConfig(f"--endpoint {self.endpoint}: not a Unix socket", remedy="unix:PATH")
        return os.path.normpath("/" + path.lstrip("/"))

    @property
    def socket_of_kubelet(self) -> str:
        """The path of the endpoint as the kubelet sees it: the container may have mounted the
        plugin's directory elsewhere."""
        if os.path.commonpath([self.socket, self.node.kubelet_dir]) == self.node.kubelet_dir:
            return self.socket
        return os.path.join(self.node.kubelet_dir, "plugins", DRIVER, os.path.basename(self.socket))


class Listener:
    """A gRPC server at a name that it takes over from an earlier process."""

    def __init__(self, path: str, threads: int, *handlers: grpc.GenericRpcHandler) -> None:
        self._path = path
        self._name: SocketName | None = None
        self._server = grpc.server(ThreadPoolExecutor(threads, "grpc"))
        self._server.add_generic_rpc_handlers(handlers)

    def start(self) -> None:
        """Serves. Raises BadConfig if it cannot bind the socket."""
        try:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            self._name = SocketName(self._path)
            self._server.add_insecure_port(UNIX + self._name.hidden)
            self._server.start()
            self._name.take()
        except (OSError, RuntimeError) as err:  # RuntimeError: gRPC cannot bind
            raise BadConfig(f"cannot listen on {self._path}: {err}") from err

    def keep(self) -> None:
        """Takes the name again if its successor has ended."""
        try:
            if self._name is not None and self._name.keep():
                log.info("took %s again: no process listened there", self._path)
        except OSError as err:
            log.warning("cannot take %s again yet: %s", self._path, err)

    def stop(self) -> None:
        """Removes the socket, unless another process has taken its name over, and ends the calls.
        Idempotent."""
        if self._name is not None:
            self._name.release()
        self._server.stop(STOP_S).wait(STOP_S)


class Driver:
    """A driver, from `start` to `stop`."""

    def __init__(self, spec: DriverSpec) -> None:
        """Makes the directories of the shared mounts. Raises OSError."""
        metrics, mounts = DriverMetrics(), SharedMounts(spec.node)
        self._probes = Probes()
        self._reconciler = Reconciler(spec.node, mounts, self._probes, metrics, spec.linger_s)
        publisher = Publisher(
            mounts,
            self._probes,
            metrics,
            spec.master,
            confine=spec.confine,
            answer_s=spec.answer_s,
        )
        registration = os.path.join(spec.registration_dir, f"{DRIVER}-reg.sock")
        self._listeners = (
            Listener(
                spec.socket,
                THREADS,
                services.identity(),
                services.node(spec.node_id, publisher),
            ),
            Listener(
                registration,
                _REGISTRATION_THREADS,
                services.plugin_registration(spec.socket_of_kubelet),
            ),
        )
        is_healthy = self._reconciler.is_healthy
        pages = [MetricsPage(spec.metrics, metrics.registry, is_healthy)] if spec.metrics else []
        self._pages = tuple(pages)

    def start(self) -> None:
        """Starts; the kubelet finds the driver last. Raises BadConfig; then nothing is served."""
        try:
            self._reconciler.start()
            for page in self._pages:
                page.start()
            for listener in self._listeners:
                listener.start()
        except BaseException:
            self.stop()
            raise

    def keep(self) -> None:
        """Takes the sockets' names again whose processes have ended: an upgrade may fail."""
        for listener in self._listeners:
            listener.keep()

    def stop(self) -> None:
        """Ends the calls within `STOP_S`, and leaves all mounts. Idempotent."""
        self._probes.close()
        for listener in reversed(self._listeners):
            listener.stop()
        for page in self._pages:
            page.close()
        self._reconciler.stop(STOP_S)


def serve(spec: DriverSpec, on_ready: Callable[[], None]) -> int:
    """Runs a driver until SIGTERM or SIGINT, and returns the exit code. Raises BadConfig,
    OSError."""
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    driver = Driver(spec)
    driver.start()
    on_ready()
    log.info("the driver serves %s", spec.socket, extra={"fields": {"node": spec.node_id}})
    while not ending.wait(KEEP_S):
        driver.keep()
    timer = threading.Timer(EXIT_S, os._exit, (0,))
    timer.daemon = True
    timer.start()
    with contextlib.suppress(OSError):  # a socket whose directory was removed
        driver.stop()
    log.info("the driver ends")
    return 0
