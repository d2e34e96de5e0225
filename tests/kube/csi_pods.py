"""A node with a driver in this process, and pods that a fake kubelet gives volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cachefs.csi.driver import Driver, DriverSpec
from cachefs.csi.shared_mounts import Node
from tests.kube.fake_kubelet import FakeKubelet, mounts_below
from tests.services.pods import PodNode

LINGER_S: Final = 0.5


class CsiPodNode(PodNode):
    """A node with a driver in this process."""

    def __init__(self, root: Path, worker_socket: Path, master: str) -> None:
        root.mkdir()
        super().__init__(root, worker_socket)
        self.kubelet = FakeKubelet(root / "k")
        self.kubelet.directory.mkdir()
        self.master = master
        self.driver = self._driver()

    def restart_driver(self) -> None:
        self.driver.stop()
        self.driver = self._driver()

    def shared(self) -> list[str]:
        return [place for place in mounts_below(self.root) if "/plugins/" in place]

    def __exit__(self, *exc: object) -> None:
        self.driver.stop()
        self.mountpoints += [Path(place) for place in reversed(mounts_below(self.root))]
        super().__exit__(*exc)

    def _driver(self) -> Driver:
        directory = str(self.kubelet.directory)
        spec = DriverSpec(
            Node(directory, self.holder.path),
            node_id="node1",
            master=self.master,
            endpoint=f"unix:{directory}/csi.sock",
            registration_dir=f"{directory}/plugins_registry",
            linger_s=LINGER_S,
        )
        driver = Driver(spec)
        driver.start()
        self.kubelet.register()
        return driver
