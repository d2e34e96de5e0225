"""Pods come and go while parts of their node end at random moments: after each event every volume
has the right bytes, and at the end nothing is left. [S-pods]"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachefs.core.addresses import parse_cluster
from tests.integration.dataset import body
from tests.kube.csi_pods import CsiPodNode
from tests.kube.fake_kubelet import mounts_below
from tests.services.cluster import Cluster
from tests.services.pods import AgentPod
from tests.services.processes import wait_until

SEED = int(os.environ.get("CACHEFS_SEED", random.SystemRandom().getrandbits(32)))
EVENTS = 60
MOST_PODS = 10
FILES = 30
READS = 3  # files of each volume after each event
PATHS = ("/data/team", "/data")
LIMIT_S = 60.0


def name_of(number: int) -> str:
    return f"f{number:04d}"


def bytes_of(number: int) -> bytes:
    return body(number, 40_000 + number * 997)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    source = tmp_path / "source" / "team"
    source.mkdir(parents=True)
    for number in range(FILES):
        (source / name_of(number)).write_bytes(bytes_of(number))
    with Cluster(tmp_path / "cluster", {}) as made:
        made.start(1, "--socket", str(tmp_path / "worker.sock"))
        made.add_ufs(f"file://{source.parent}", "/data")
        yield made


class World:
    """A node, its pods by name with the path of their volume, and the events."""

    def __init__(self, node: CsiPodNode, cluster: Cluster, rng: random.Random) -> None:
        self.node = node
        self.worker = cluster.workers[0]
        self.rng = rng
        self.pods: dict[str, str] = {}
        self.made = 0
        self.agent = self.next_agent()

    def next_agent(self) -> AgentPod:
        agent = self.node.agent(f"agent-{len(self.node.agents)}")
        agent.wait_until_ready()
        return agent

    # ---- events ----

    def publish(self) -> None:
        if len(self.pods) < MOST_PODS:
            self.made += 1
            pod, path = f"pod-{self.made}", self.rng.choice(PATHS)
            self.node.kubelet.publish(pod, {"path": path})
            self.pods[pod] = path

    def publish_again(self) -> None:
        for pod, path in self.pods.items():
            self.node.kubelet.publish(pod, {"path": path})

    def unpublish(self) -> None:
        if self.pods:
            pod = self.rng.choice(list(self.pods))
            del self.pods[pod]
            self.node.kubelet.unpublish(pod)

    def kill_agent(self) -> None:
        self.agent.kill()
        self.agent = self.next_agent()

    def roll_agent(self) -> None:
        old, self.agent = self.agent, self.next_agent()
        old.stop()

    def kill_client(self) -> None:
        self._kill_one("cachefs.fuse.client")

    def kill_supervisor(self) -> None:
        self._kill_one("cachefs.fuse.supervisor")

    def _kill_one(self, module: str) -> None:
        victims = self.agent.processes(module)
        if victims:
            os.kill(self.rng.choice(victims), signal.SIGKILL)
            wait_until(self.all_claimed, "every mount is claimed", LIMIT_S)

    def restart_driver(self) -> None:
        self.node.restart_driver()

    def restart_holder(self) -> None:
        keys = {*self.node.claimants()}
        self.node.restart_holder()
        # Whoever loses both at once loses the mount: not what this test is about.
        wait_until(lambda: {*self.node.claimants()} >= keys - self._gone(keys), "deposits", LIMIT_S)
        wait_until(self.all_claimed, "every mount is claimed", LIMIT_S)

    def _gone(self, keys: set[str]) -> set[str]:
        """Keys of mounts that were removed meanwhile: they linger without a pod."""
        return keys if len(self.node.shared()) < len(keys) else set()

    def kill_worker(self) -> None:
        self.worker.kill()
        self.worker.start()

    # ---- what must hold ----

    def all_claimed(self) -> bool:
        return all(self.node.claimants().values())

    def check(self) -> None:
        for pod, path in self.pods.items():
            folder = self.node.kubelet.target(pod) / ("" if path == "/data/team" else "team")
            for number in self.rng.sample(range(FILES), READS):
                assert (folder / name_of(number)).read_bytes() == bytes_of(number), pod


def test_nothing_wrong_is_read_and_nothing_is_left(tmp_path: Path, cluster: Cluster) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    master = parse_cluster(cluster.path("/data")).address
    with (
        tempfile.TemporaryDirectory(prefix="csi") as directory,
        CsiPodNode(Path(directory, "n"), tmp_path / "worker.sock", master) as node,
    ):
        world = World(node, cluster, rng)
        happen(world)
        for pod in world.pods:
            node.kubelet.unpublish(pod)
        wait_until(lambda: not node.shared() and not node.claimants(), "what is left is removed")
        wait_until(lambda: not world.agent.processes("cachefs.fuse."), "nothing serves")
        assert not [place for place in mounts_below(node.root) if "/pods/" in place]


def happen(world: World) -> None:
    often: list[Callable[[], None]] = [world.publish, world.publish, world.unpublish]
    seldom: list[Callable[[], None]] = [
        world.publish_again,
        world.kill_agent,
        world.roll_agent,
        world.kill_client,
        world.kill_supervisor,
        world.restart_driver,
        world.restart_holder,
        world.kill_worker,
    ]
    for _ in range(EVENTS):
        event = world.rng.choice(often if world.rng.random() < 0.5 else seldom)
        print(event.__name__, len(world.pods), flush=True)
        event()
        world.check()
