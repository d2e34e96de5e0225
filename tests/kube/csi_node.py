"""A node for the tests of the driver: a kubelet's directory, a holder's process, a server of roots,
and drivers in this process. At its end nothing of it may be left."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cachefs.core.errors import CacheFSError
from cachefs.csi import system_calls
from cachefs.csi.driver import Driver, DriverSpec
from cachefs.csi.shared_mounts import Node
from cachefs.fuse.deposits import HolderClient
from tests.kube.fake_kubelet import FakeKubelet, mounts_below, sockets_below
from tests.kube.root_server import RootServer
from tests.services.pods import HolderProcess

LIMIT_S: Final = 15.0
MASTER: Final = "master:19998"


class CsiNode:
    """A node, from its start to `end`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubelet = FakeKubelet(directory / "k")
        self.kubelet.directory.mkdir()
        self.holder_dir = directory / "h"
        self.holder: HolderProcess | None = None
        self.server: RootServer | None = None
        self.drivers: list[Driver] = []
        self.start_holder()
        self.start_server()

    @property
    def holder_socket(self) -> str:
        return str(self.holder_dir / "holder.sock")

    @property
    def mounts_dir(self) -> Path:
        return self.kubelet.directory / "plugins" / "csi.cachefs.io" / "mounts"

    @property
    def page(self) -> str:
        return str(self.directory / "m.sock")

    # ---- processes -------------------------------------------------------------------------------

    def start_holder(self) -> None:
        self.holder = HolderProcess(self.holder_dir)
        assert self.holder.greeting == "ready\n"

    def end_holder(self) -> None:
        if self.holder is not None:
            self.holder.kill()
            self.holder = None

    def start_server(self) -> None:
        self.server = RootServer(self.holder_socket)

    def end_server(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def spec(self, **changes: Any) -> DriverSpec:
        node = Node(str(self.kubelet.directory), self.holder_socket)
        settings: dict[str, Any] = {
            "node_id": "node1",
            "master": MASTER,
            "endpoint": f"unix:{self.kubelet.directory}/plugins/csi.cachefs.io/csi.sock",
            "registration_dir": str(self.kubelet.directory / "plugins_registry"),
            "metrics": f"unix:{self.page}",
        }
        return DriverSpec(node, **{**settings, **changes})

    def start_driver(self, **changes: Any) -> Driver:
        """Starts a driver, and registers it."""
        driver = Driver(self.spec(**changes))
        self.drivers.append(driver)
        driver.start()
        self.kubelet.register()
        return driver

    # ---- what is there ---------------------------------------------------------------------------

    def keys(self) -> dict[str, str]:
        with HolderClient(self.holder_socket) as holder:
            return holder.claimants()

    def shared(self) -> list[str]:
        return [place for place in self.mounts() if "/plugins/" in place]

    def mounts(self) -> list[str]:
        return mounts_below(self.directory)

    def get(self, path: str) -> tuple[int, str]:
        """Returns the status and the body of a page of the driver."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(LIMIT_S)
            sock.connect(self.page)
            connection = http.client.HTTPConnection("localhost", timeout=LIMIT_S)
            connection.sock = sock
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def metric(self, name: str) -> float:
        _, text = self.get("/metrics")
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith((f"{name} ", f"{name}{{"))
        )

    def wait_until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end, (self.mounts(), self._keys_if_any())
            time.sleep(0.02)

    def _keys_if_any(self) -> object:
        try:
            return self.keys()
        except CacheFSError as err:
            return err.one_line()

    # ---- the end ---------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends everything, and checks that only what the test has left is removed here."""
        for driver in self.drivers:
            driver.stop()
        self.end_server()
        self.end_holder()
        for place in reversed(self.mounts()):
            system_calls.detach(place)
        assert not self.mounts()
        own = [path for path in sockets_below(self.directory) if path != self.holder_socket]
        assert own == []
