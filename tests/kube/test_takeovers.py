"""Mounts of pods outlive everything that serves them: each line of the table of failures, with
containers that are pid namespaces, and readers that are pods. [S-pods] [S-pods-claim]
[S-pods-wait]"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import is_mounted
from tests.integration.dataset import body
from tests.services.cluster import Cluster, ClusterFailed
from tests.services.mount_readers import MountReaders
from tests.services.namespaces import with_mount
from tests.services.pods import PodNode
from tests.services.processes import credentials, is_running, stop, tcp_sockets, wait_until
from tests.services.unmounting import unmount

MIB = 1 << 20
SEED = random.SystemRandom().getrandbits(32)
# A pod's process: an ordinary user, whose mounts do not follow those of the node.
TRAINER = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--no-new-privs")
KINDS = ("open", "hold", "keep", "map", "stat")
AWAY_S = 6.0
# Of a file that is open and complete, while others want the two CPUs: less than nobody serves. The
# bench has the bars.
KEPT_S = 5.0
OPEN_S = 30.0  # until others serve; a busy machine takes 10 s to start them
HANG_S = 2.0  # without a heartbeat


@pytest.fixture
def rng() -> random.Random:
    print(f"seed {SEED}")
    return random.Random(SEED)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that a trainer, who is another user, reaches: pytest's own ones are private."""
    with tempfile.TemporaryDirectory(prefix="pods") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.fixture
def source(open_path: Path) -> Path:
    root = open_path / "source"
    for number in range(60):
        path = root / f"small{number % 6}" / f"f{number:04d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body(number, 60_000 + number * 997))
    (root / "big").write_bytes(body(1000, 20 * MIB))
    return root


@pytest.fixture
def cluster(open_path: Path, source: Path) -> Iterator[Cluster]:
    socket = open_path / "run" / "worker.sock"
    socket.parent.mkdir()
    with Cluster(open_path / "cluster", {}) as made:
        made.start(1, "--socket", str(socket))
        made.add_ufs(f"file://{source}", "/data")
        yield made


class Node(PodNode):
    """A node, and the readers of its one mount."""

    def __init__(
        self, root: Path, cluster: Cluster, source: Path, *options: str, **client: Any
    ) -> None:
        root.mkdir()
        super().__init__(root, root.parent / "run" / "worker.sock", *options)
        self.source = cluster.path("/data")
        self.path, self.key = self.mount(self.source, "mnt", **client)
        self.readers = MountReaders(
            self.path, source, root / "stop", with_mount(self.path, *TRAINER)
        )

    def __exit__(self, *exc: object) -> None:
        self.readers.clean_up()
        super().__exit__(*exc)

    @property
    def claimant(self) -> str:
        return self.claimants().get(self.key, "")

    def wait_for(self, name: str) -> None:
        wait_until(lambda: self.claimant == name, f"{name} claims the mount")

    def finish(self) -> None:
        longest_s = self.readers.finish()
        assert longest_s["keep"] < KEPT_S
        assert max(longest_s.values()) < OPEN_S


@pytest.fixture
def node(open_path: Path, cluster: Cluster, source: Path) -> Iterator[Node]:
    with Node(open_path / "node", cluster, source) as made:
        yield made


def test_a_rolled_agent_hands_over_to_the_next_and_back(node: Node, rng: random.Random) -> None:
    old = node.agent("pod-0")
    old.wait_until_ready()
    node.readers.start(rng, KINDS)
    for number in range(1, 4):
        new = node.agent(f"pod-{number}")
        new.wait_until_ready()
        assert node.claimant == new.name
        wait_until(lambda: not old.processes("cachefs.fuse"), "the old pod serves nothing")  # noqa: B023
        assert old.is_running, "until the kubelet stops it"
        old.stop()
        old = new
    node.finish()


def test_an_agent_whose_name_is_too_long_for_the_holder_is_ready(node: Node) -> None:
    """The holder keeps the end of the name. Each agent still knows which claims are its own."""
    for number in range(2):
        agent = node.agent(f"cachefs-node-of-a-long-name-{number}")
        agent.wait_until_ready()
        assert agent.name.endswith(node.claimant)


def test_a_killed_container_is_followed_by_the_next(node: Node, rng: random.Random) -> None:
    agent = node.agent("pod")
    agent.wait_until_ready()
    node.readers.start(rng, KINDS)
    for _ in range(3):
        agent.kill()
        agent = node.agent("pod")
        agent.wait_until_ready()
    node.finish()


def test_a_container_that_is_stopped_leaves_the_mount(node: Node, rng: random.Random) -> None:
    agent = node.agent("first")
    agent.wait_until_ready()
    node.readers.start(rng, KINDS)
    agent.stop()
    assert agent.popen.returncode == 0
    assert is_mounted(node.path)
    node.agent("second").wait_until_ready()
    node.finish()


@pytest.mark.parametrize("victim", ["cachefs.fuse.client", "cachefs.fuse.supervisor"])
def test_one_process_of_a_container_is_replaced_there(
    node: Node, rng: random.Random, victim: str
) -> None:
    agent = node.agent("pod")
    agent.wait_until_ready()
    node.readers.start(rng, KINDS)
    for _ in range(3):
        (pid,) = agent.processes(victim)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in agent.processes(victim), "its end")  # noqa: B023
        wait_until(lambda: len(agent.processes(victim)) == 1, "the next one")
        node.wait_for("pod")
    node.finish()
    assert len(agent.processes("cachefs.fuse.supervisor")) == 1
    assert len(agent.processes("cachefs.fuse.client")) == 1


def test_a_client_that_hangs_is_replaced(
    open_path: Path, cluster: Cluster, source: Path, rng: random.Random
) -> None:
    """Its supervisor misses the heartbeats, has the stacks written to the log, and kills it."""
    with Node(open_path / "node", cluster, source, heartbeat_timeout_s=HANG_S) as node:
        agent = node.agent("pod")
        agent.wait_until_ready()
        node.readers.start(rng, KINDS)
        for _ in range(2):
            (hung,) = agent.processes("cachefs.fuse.client")
            stop(hung)
            wait_until(lambda: not is_running(hung), "the client that hangs ends")  # noqa: B023
            wait_until(lambda: len(agent.processes("cachefs.fuse.client")) == 1, "the next one")
            assert os.listdir(node.path)
        node.wait_for("pod")
        node.finish()
        assert len(agent.processes("cachefs.fuse.supervisor")) == 1, "the agent started no other"


def test_a_lost_holder_gets_every_mount_again(node: Node, rng: random.Random) -> None:
    agent = node.agent("first")
    agent.wait_until_ready()
    node.readers.start(rng, KINDS)
    for _ in range(2):
        node.restart_holder()
        node.wait_for("first")
    agent.kill()
    node.agent("second").wait_until_ready()
    node.finish()


def test_holder_and_supervisor_at_once_leave_the_client(node: Node, rng: random.Random) -> None:
    """The next supervisor deposits the mount with a holder that does not know it."""
    agent = node.agent("pod")
    agent.wait_until_ready()
    node.readers.start(rng, KINDS)
    for _ in range(3):
        (pid,) = agent.processes("cachefs.fuse.supervisor")
        (client,) = agent.processes("cachefs.fuse.client")
        os.kill(pid, signal.SIGKILL)
        node.restart_holder()
        node.wait_for("pod")
        assert is_running(client)
    node.finish()


def test_nobody_serves_for_a_while(node: Node, rng: random.Random) -> None:
    """Opens wait for the next agent; files that are open and complete are read meanwhile."""
    agent = node.agent("first")
    agent.wait_until_ready()
    node.readers.start(rng, KINDS)
    agent.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["cat", node.path / "not-there"], timeout=AWAY_S, check=False)
    node.agent("second").wait_until_ready()
    node.finish()


def test_a_worker_that_is_rolled_is_waited_for(
    node: Node, cluster: Cluster, rng: random.Random
) -> None:
    agent = node.agent("pod")
    agent.wait_until_ready()
    node.readers.start(rng, KINDS)
    (worker,) = cluster.workers
    worker.stop()
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["cat", node.path / "not-there"], timeout=AWAY_S, check=False)
    agent.kill()
    agent = node.agent("pod")  # it starts while there is no worker, and starts none
    assert not agent.ready.exists()
    worker.start()
    agent.wait_until_ready()
    node.finish()
    assert not agent.processes("cachefs.launcher")


def test_an_agent_that_cannot_serve_leaves_the_mount_where_it_is(
    node: Node, rng: random.Random
) -> None:
    old = node.agent("old")
    old.wait_until_ready()
    node.readers.start(rng, KINDS)
    working, node.worker_socket = node.worker_socket, node.root / "no.sock"
    broken = node.agent("broken")
    wait_until(lambda: broken.processes("cachefs.fuse.client"), "it tries")
    node.worker_socket = working
    assert not broken.ready.exists()
    assert node.claimant == "old"
    broken.kill()
    node.finish()


def test_a_newer_agent_that_dies_gives_the_mount_back(node: Node, rng: random.Random) -> None:
    node.agent("old").wait_until_ready()
    node.readers.start(rng, KINDS)
    new = node.agent("new")
    new.wait_until_ready()
    new.kill()
    node.wait_for("old")
    node.finish()


def test_holder_and_container_at_once_end_the_mount(node: Node) -> None:
    agent = node.agent("pod")
    agent.wait_until_ready()
    agent.kill()
    node.holder.kill()
    with pytest.raises(OSError) as caught:
        os.stat(node.path / "big")
    assert caught.value.errno == errno.ENOTCONN


def test_an_unmounted_mount_leaves_nothing(node: Node) -> None:
    agent = node.agent("pod")
    agent.wait_until_ready()
    (client,) = agent.processes("cachefs.fuse.client")
    unmount(node.path)
    wait_until(lambda: not node.claimants(), "its deposit is dropped")
    wait_until(lambda: not agent.processes("cachefs.fuse."), "nothing serves it")
    assert not is_running(client)
    second, key = node.mount(node.source, "again")
    wait_until(lambda: node.claimants().get(key) == "pod", "the agent serves the next mount")
    assert os.listdir(second)


def test_a_mount_that_nothing_can_serve_ends_with_an_error(
    open_path: Path, cluster: Cluster, source: Path
) -> None:
    options = ("--give-up-after", "3s", "--worker-wait", "60s")
    with Node(open_path / "node", cluster, source, *options) as node:
        cluster.workers[0].stop()
        node.agent("pod")
        with pytest.raises(OSError) as caught:
            os.stat(node.path / "big")
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        wait_until(lambda: not node.claimants(), "it is dropped")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_mount_whose_clients_fail_again_and_again_ends_with_an_error(
    open_path: Path, cluster: Cluster, source: Path, number: signal.Signals
) -> None:
    options = ("--give-up-after", "4s")
    limit_s = 0.5  # without a heartbeat
    with Node(open_path / "node", cluster, source, *options, heartbeat_timeout_s=limit_s) as node:
        agent = node.agent("pod")
        agent.wait_until_ready()
        failed: set[int] = set()

        def is_dropped() -> bool:
            if agent.log.count(" is ready at ") > len(failed):  # the next client serves
                for pid in {*agent.processes("cachefs.fuse.client")} - failed:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                    failed.add(pid)
            return not node.claimants()

        wait_until(is_dropped, "the mount is given up", 60.0)
        with pytest.raises(OSError) as caught:
            os.stat(node.path / "big")
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        wait_until(lambda: "no client could serve" in agent.log, "the log says so")


def test_a_client_over_its_budget_is_replaced_under_readers(
    open_path: Path, cluster: Cluster, source: Path, rng: random.Random
) -> None:
    with Node(open_path / "node", cluster, source, "--client-memory", "1MiB") as node:
        agent = node.agent("pod")
        agent.wait_until_ready()
        (first,) = agent.processes("cachefs.fuse.client")
        node.readers.start(rng, KINDS)
        wait_until(lambda: not is_running(first), "a client over its budget ends")
        wait_until(lambda: len(agent.processes("cachefs.fuse.client")) == 1, "one serves")
        node.finish()
        assert node.claimant == "pod"


def test_the_container_needs_one_capability(node: Node) -> None:
    agent = node.agent("pod")
    agent.wait_until_ready()
    processes = [agent.first, *agent.processes("cachefs.fuse.")]
    assert len(processes) == 3
    for pid in processes:
        status = Path(f"/proc/{pid}/status").read_text()
        assert int(status.split("CapEff:")[1].split()[0], 16) == 1 << 21, "CAP_SYS_ADMIN"
        assert not tcp_sockets(pid)
        assert not credentials(pid)


def test_a_mount_of_one_worker_waits_for_it_and_starts_none(
    open_path: Path, cluster: Cluster
) -> None:
    (worker,) = cluster.workers
    options = ("--worker-socket", str(open_path / "run" / "worker.sock"), "--worker-wait", "3s")
    path = worker.mount(cluster.path("/data"), *options)
    assert (path / "big").stat().st_size == 20 * MIB
    worker.stop()
    began = time.monotonic()
    with pytest.raises(OSError) as caught:
        os.stat(path / "never-seen")
    assert caught.value.errno == errno.EIO
    assert time.monotonic() - began >= 2.9
    worker.start()
    assert len((path / "big").read_bytes()) == 20 * MIB
    nodes = list((worker.root / ".cache/cachefs/clusters").glob("*/nodes/*"))
    assert len(nodes) == 1, "its own; no mount has started one"
    worker.umount(path)


def test_a_worker_s_socket_is_for_mounts_of_clusters(open_path: Path, cluster: Cluster) -> None:
    (worker,) = cluster.workers
    with pytest.raises(ClusterFailed, match="only a mount of a cluster uses a worker"):
        worker.mount(f"file://{open_path}", "--worker-socket", str(open_path / "w.sock"))


def test_its_log_and_its_metrics_are_for_machines(
    open_path: Path, cluster: Cluster, source: Path
) -> None:
    options = ("--log-format", "json", "--metrics", f"unix:{open_path}/metrics.sock")
    with Node(open_path / "node", cluster, source, *options) as node:
        agent = node.agent("pod")
        agent.wait_until_ready()

        def loggers() -> set[str]:
            return {json.loads(line)["logger"] for line in agent.log.splitlines()}

        every = {"cachefs.agent", "cachefs.supervisor", "cachefs.client"}
        wait_until(lambda: every <= loggers(), "each process has logged")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(OPEN_S)
            sock.connect(f"{open_path}/metrics.sock")
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            with sock.makefile("rb") as reply:
                assert b"cachefs_agent_mounts 1.0" in reply.read()


def test_a_path_that_is_gone_keeps_no_agent_from_being_ready(
    node: Node, cluster: Cluster, open_path: Path
) -> None:
    """Else one pod whose source was removed would stop the upgrade of all nodes."""
    (open_path / "failures").mkdir()
    node.agent("old").wait_until_ready()
    master = cluster.master
    master.run("ufs", "rm", "/data", "--master", master.url)
    new = node.agent("new")
    new.wait_until_ready()
    assert node.claimant == "old", "it serves what there was"
