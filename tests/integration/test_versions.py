"""Two versions on one machine: a mount and a worker of the earlier one go over to the installed one
under a reader, and what is of another version is named meanwhile."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

import cachefs
from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body
from tests.services.cluster import CACHEFS, Cluster, Machine
from tests.services.commands import run_program
from tests.services.other_version import Installation, install
from tests.services.processes import is_running, wait_until

EARLIER = "0.0.9"
FILES = {f"d/{number}": body(number, 300_000) for number in range(20)}
WAIT_S = 60.0


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(tmp_path_factory.mktemp("earlier"), EARLIER)


class Reader:
    """Reads all files again and again, and compares them."""

    def __init__(self, root: Path) -> None:
        self.rounds = 0
        self.errors: list[str] = []
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            for name, data in FILES.items():
                try:
                    found = (self._root / name).read_bytes()
                except OSError as err:
                    self.errors.append(f"{name}: {err}")
                    continue
                if found != data:
                    self.errors.append(f"{name}: {hashlib.sha256(found).hexdigest()}")
            self.rounds += 1

    def __enter__(self) -> Reader:
        self._thread.start()
        self.wait_for_a_round()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)

    def wait_for_a_round(self) -> None:
        """Returns once all files were read again, from now on."""
        least = self.rounds + 2
        wait_until(lambda: self.rounds >= least, "the reader goes on", WAIT_S)


def test_a_mount_goes_over_to_the_installed_version(
    node: Node, tmp_path: Path, earlier: Installation
) -> None:
    source, mountpoint = tmp_path / "source", node.mountpoint()
    for name, data in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    node.mountpoints.append(mountpoint)
    node.allowed_log.append(r"client|supervisor|server|connection|took over|killed|died|lost")
    words = ["mount", f"file://{source}", str(mountpoint)]
    done = run_program(earlier.program, words, node.environment, WAIT_S)
    assert done.returncode == 0, done.stderr
    before = {one["pid"] for one in node.processes(mountpoint)}
    assert node.status(mountpoint)["version"] == EARLIER
    with Reader(mountpoint) as reader:
        said = node.ok("mount", "--upgrade", mountpoint)
        assert f"is served by version {cachefs.__version__}" in said
        assert EARLIER not in said, "nothing of it is left"
        reader.wait_for_a_round()
        assert reader.errors == []
    after = {one["pid"] for one in node.processes(mountpoint)}
    assert not before & after
    wait_until(lambda: not any(map(is_running, before)), "the earlier version's processes end")
    assert node.status(mountpoint)["version"] == cachefs.__version__
    node.umount(mountpoint)


class MachineOf(Machine):
    """Its command line is that of an installation; None: of the one that is tested."""

    installed: Installation | None = None

    @property
    def program(self) -> list[str | Path]:
        return self.installed.program if self.installed is not None else [CACHEFS]


def joined(cluster: Cluster, installed: Installation) -> MachineOf:
    """Returns a machine of an installation, with a worker."""
    root = cluster.root / "earlier"
    environment = {**cluster.master.environment, "HOME": str(root)}
    made = MachineOf("earlier", root, environment)
    made.installed = installed
    tier = f"ssd:{made.root / 'tier'}:64MiB"
    made.command = ["worker", "--master", cluster.master.url, "--tier", tier]
    cluster.workers.append(made)
    made.start()
    return made


def test_a_node_of_an_earlier_version_is_named_and_goes_over(
    cluster: Cluster, bucket: Bucket, earlier: Installation
) -> None:
    bucket.fill(FILES)
    cluster.start(1, size="64MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    node = joined(cluster, earlier)
    cluster.wait_until_settled()
    mountpoint = node.mount(cluster.path("/data"))
    said = cluster.master.run("health", cluster.path(""), codes=(1,))
    assert "VERSION_SKEW" in said
    assert f"it runs {EARLIER}, the master {cachefs.__version__}" in said
    assert "VERSION_SKEW" in node.run("health", mountpoint, codes=(1,)), "its own command too"
    with Reader(mountpoint) as reader:
        node.installed = None
        said = node.run("mount", "--upgrade", mountpoint)
        assert f"is served by version {cachefs.__version__}" in said
        assert f"its server is of version {EARLIER}" in said
        reader.wait_for_a_round()
        node.stop()
        node.start()
        reader.wait_for_a_round()
        assert reader.errors == []
    assert node.json("status", mountpoint)["version"] == cachefs.__version__
    wait_until(lambda: "OK" in cluster.master.run("health", cluster.path(""), codes=(0, 1)), "well")
    node.umount(mountpoint)
