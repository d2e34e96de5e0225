"""A node whose pods have volumes of a cluster: what may happen to it, what must hold after each
event, and what must be left when the last pod has gone: nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from cachefs.core.addresses import parse_cluster
from cachefs.core.mountinfo import read_mounts
from cachefs.csi.leftovers import keys_of
from tests.integration.dataset import body
from tests.kube.csi_pods import CsiPodNode, descriptor_count
from tests.kube.fake_kubelet import refused
from tests.services.cluster import Cluster, Machine
from tests.services.pods import AgentPod
from tests.services.processes import NotInTime, wait_until

FILES: Final = 30
READS: Final = 3  # files of each volume that a check opens
HELD: Final = "held"  # the file that each pod has open
HELD_BYTES: Final = 3 << 20
HELD_BODY: Final = body(FILES, HELD_BYTES)
READ_BYTES: Final = 64 << 10
LIMIT_S: Final = 60.0
AWAY_S: Final = 0.1  # after which the kubelet asks a driver that is away no longer
CLIENT: Final = "cachefs.fuse.client"
SUPERVISOR: Final = "cachefs.fuse.supervisor"


class Kind(NamedTuple):
    """A path with options, and where the files are below it. Each kind has a mount of its own."""

    attributes: Mapping[str, str]
    folder: str = ""


KINDS: Final = {
    "team": Kind({"path": "/data/team"}),
    "all": Kind({"path": "/data"}, "team"),
    "modes": Kind({"path": "/data/team", "fileMode": "0440"}),
}


class Pod(NamedTuple):
    """A pod with its volume. `held`: a descriptor of the file that it has open."""

    kind: str
    held: int


def name_of(number: int) -> str:
    return f"f{number:04d}"


def bytes_of(number: int) -> bytes:
    return body(number, 40_000 + number * 997)


@contextlib.contextmanager
def data_cluster(directory: Path) -> Iterator[Cluster]:
    """Yields a cluster of one worker, which has the files at /data/team."""
    source = directory / "source" / "team"
    source.mkdir(parents=True)
    for number in range(FILES):
        (source / name_of(number)).write_bytes(bytes_of(number))
    (source / HELD).write_bytes(HELD_BODY)
    with Cluster(directory / "cluster", {}) as cluster:
        cluster.start(1, "--socket", str(directory / "worker.sock"))
        cluster.add_ufs(f"file://{source.parent}", "/data")
        yield cluster


@contextlib.contextmanager
def pod_world(cluster: Cluster) -> Iterator[PodWorld]:
    """Yields a new node of the cluster's worker."""
    master = parse_cluster(cluster.path("/data")).address
    # pytest's directories are too deep for the names of sockets.
    with (
        tempfile.TemporaryDirectory(prefix="csi") as directory,
        CsiPodNode(Path(directory, "n"), cluster.root.parent / "worker.sock", master) as node,
    ):
        world = PodWorld(node, cluster.workers[0])
        try:
            yield world
        finally:
            world.close_files()


class PodWorld:
    """A node and its pods. Events leave everything running; `check` may follow each of them."""

    def __init__(self, node: CsiPodNode, worker: Machine) -> None:
        self.node = node
        self.worker = worker
        self.pods: dict[str, Pod] = {}
        self.agent = self._next_agent()
        self._checks = 0
        # The driver connects to the holder now and then: the fewest descriptors are those at rest.
        states = [node.state() for _ in range(5)]
        self.before = min(states, key=descriptor_count)

    def _new_agent(self) -> AgentPod:
        return self.node.agent(f"agent-{len(self.node.agents)}")

    def _next_agent(self) -> AgentPod:
        agent = self._new_agent()
        agent.wait_until_ready()
        return agent

    # ---- pods ------------------------------------------------------------------------------------

    def publish(self, pod: str, kind: str) -> None:
        """Creates a pod, or publishes the volume of one that is there again."""
        known = self.pods.get(pod)
        kind = known.kind if known else kind
        target = self.node.kubelet.publish(pod, KINDS[kind].attributes)
        if not known:
            fd = os.open(target / KINDS[kind].folder / HELD, os.O_RDONLY)
            self.pods[pod] = Pod(kind, fd)

    def publish_again(self) -> None:
        for pod in self.pods:
            self.publish(pod, "")

    def unpublish(self, pod: str) -> None:
        self._end_containers(pod)
        self.node.kubelet.unpublish(pod)
        assert not os.path.lexists(self.node.kubelet.target(pod))

    def unpublish_all(self, pods: Iterable[str]) -> None:
        """Deletes pods side by side."""
        with ThreadPoolExecutor(6) as kubelet:
            list(kubelet.map(self.unpublish, pods))

    def _end_containers(self, pod: str) -> None:
        if pod in self.pods:
            os.close(self.pods.pop(pod).held)

    def close_files(self) -> None:
        for pod in [*self.pods]:
            self._end_containers(pod)

    # ---- the agent -------------------------------------------------------------------------------

    def kill_agent(self) -> None:
        self.agent.kill()
        self.agent = self._next_agent()

    def kill_agents_group(self) -> None:
        self.node.kill_group(self.agent)
        self.agent = self._next_agent()

    def roll_agent(self) -> None:
        old, self.agent = self.agent, self._next_agent()
        old.stop()

    def roll_to_a_broken_agent(self) -> None:
        """Starts an agent that cannot serve, and removes it. There must be a pod."""
        working, self.node.worker_socket = self.node.worker_socket, self.node.root / "no.sock"
        broken = self._new_agent()
        self.node.worker_socket = working
        wait_until(lambda: broken.processes(CLIENT), "it tries", LIMIT_S)
        self.check()
        assert not broken.ready.exists()
        assert broken.name not in self.node.claimants().values()
        broken.kill()

    def kill_one(self, module: str, number: int) -> None:
        """Kills one of the clients, or of the supervisors, if there is any."""
        victims = self.agent.processes(module)
        if victims:
            victim = victims[number % len(victims)]
            with contextlib.suppress(ProcessLookupError):  # its mount was removed meanwhile
                os.kill(victim, signal.SIGKILL)
            wait_until(lambda: victim not in self.agent.processes(module), "its end", LIMIT_S)

    # ---- the driver, the holder and the worker ---------------------------------------------------

    def restart_driver(self) -> None:
        self.node.restart_driver()

    def kill_driver(self) -> None:
        self.node.driver.kill()
        self.node.start_driver()

    def delete_without_driver(self, pod: str) -> None:
        self.node.driver.stop()
        self._delete_in_vain(pod)
        self.node.start_driver()
        self.unpublish(pod)

    def change_pods_without_plugin(self, created: str, kind: str, deleted: str) -> None:
        """Creates a pod and deletes another one while no part but the holder is there."""
        self.node.driver.stop()
        self.agent.stop()
        with refused() as found:
            self.node.kubelet.publish(created, KINDS[kind].attributes, limit_s=AWAY_S)
        assert found[0][0] is grpc.StatusCode.DEADLINE_EXCEEDED
        self._delete_in_vain(deleted)
        self.agent = self._new_agent()
        self.node.start_driver()
        self.publish(created, kind)
        self.unpublish(deleted)
        self.agent.wait_until_ready()

    def _delete_in_vain(self, pod: str) -> None:
        self._end_containers(pod)
        with refused() as found:
            self.node.kubelet.unpublish(pod, AWAY_S)
        assert found[0][0] is grpc.StatusCode.DEADLINE_EXCEEDED

    def restart_holder(self) -> None:
        """Restarts the holder. Whoever loses it and a claimant at once loses the mount, so this
        waits until each mount is deposited again."""
        self.node.restart_holder()
        self.wait_until_claimed()

    def kill_worker(self) -> None:
        self.worker.kill()
        self.worker.start()

    # ---- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        """Checks what pods read, and the mounts. Waits until each is claimed."""
        self._checks += 1
        for pod in [*self.pods]:
            self.check_pod(pod)
        self._check_mounts()
        self.wait_until_claimed()

    def check_pod(self, pod: str) -> None:
        """Reads files of a pod's volume, and a part of the file that it has open."""
        kind, held = self.pods[pod]
        folder = self.node.kubelet.target(pod) / KINDS[kind].folder
        for number in range(READS):
            chosen = (self._checks * READS + number) % FILES
            assert (folder / name_of(chosen)).read_bytes() == bytes_of(chosen), pod
        offset = self._checks * READ_BYTES % HELD_BYTES
        os.posix_fadvise(held, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(held, READ_BYTES, offset) == HELD_BODY[offset : offset + READ_BYTES], pod

    def _check_mounts(self) -> None:
        """Each kind of volume that a pod has is one mount, which is bound into each pod once."""
        mounts = read_mounts()
        assert all(mounts.layers(place) == 1 for place in self.node.shared())
        devices: dict[str, set[str]] = {}
        for pod, (kind, _) in self.pods.items():
            target = str(self.node.kubelet.target(pod))
            assert mounts.layers(target) == 1, pod
            top = mounts.at(target)
            devices.setdefault(kind, set()).add(top.device if top else "")
        assert all(len(found) == 1 for found in devices.values()), devices
        assert len(set().union(*devices.values())) == len(devices), devices

    def wait_until_claimed(self) -> None:
        def claimed() -> bool:
            places, claimants = self.node.shared(), self.node.claimants()
            return all(any(claimants[key] for key in keys_of(at, claimants)) for at in places)

        wait_until(claimed, "every mount is claimed", LIMIT_S)

    def end(self) -> None:
        """Deletes all pods; then everything is as it was at the start, and the end of the driver
        and of the agent leaves no process."""
        self.unpublish_all([*self.pods])
        try:
            wait_until(lambda: self.node.state() == self.before, "nothing is left", LIMIT_S)
        except NotInTime as err:
            raise AssertionError(f"{self.node.state()} instead of {self.before}") from err
        self.node.driver.stop()
        self.agent.stop()
        assert not self.node.group.pids()
