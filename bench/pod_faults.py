"""The pauses that readers in pods see when parts of a node end: `python -m bench.pod_faults`.

Prints the table of docs/kubernetes.md. Containers are pid namespaces with one capability, readers
are ordinary users in mount namespaces of their own, as the kubelet would make them. Each event
happens `TURNS` times under readers that compare every byte.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.machine import describe
from tests.integration.dataset import body
from tests.services.cluster import Cluster
from tests.services.mount_readers import MountReaders
from tests.services.namespaces import with_mount
from tests.services.pods import AgentPod, PodNode
from tests.services.processes import wait_until

SEED: Final = 7
TURNS: Final = 3
FILES: Final = 300
KINDS: Final = ("keep", "open", "stat")
AWAY_S: Final = 20.0  # no plugin at all
LIMIT_S: Final = 60.0
TRAINER: Final = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--no-new-privs")


class Bench:
    """A node with one mount that an agent serves."""

    def __init__(self, node: PodNode, cluster: Cluster, source: Path) -> None:
        self.node = node
        self.cluster = cluster
        self.source = source
        self.path, self.key = node.mount(cluster.path("/data"), "mnt")
        self.agent = self._start()
        self._count = 0

    def _start(self) -> AgentPod:
        agent = self.node.agent(f"pod-{len(self.node.agents)}")
        agent.wait_until_ready()
        return agent

    def measure(self, event: Callable[[], None]) -> dict[str, float]:
        """Returns the longest rounds of readers under `TURNS` events, in seconds by kind."""
        self._count += 1
        stop = self.node.root / f"stop{self._count}"
        prefix = with_mount(self.path, *TRAINER)
        readers = MountReaders(self.path, self.source, stop, prefix)
        try:
            readers.start(random.Random(SEED), KINDS)
            for _ in range(TURNS):
                event()
                time.sleep(1.0)  # undisturbed
            return readers.finish()
        finally:
            readers.clean_up()

    # ---- events ----

    def nothing(self) -> None:
        time.sleep(1.0)

    def roll(self) -> None:
        """The next pod starts beside this one, which is stopped when the next one serves."""
        old, self.agent = self.agent, self._start()
        old.stop()

    def kill_container(self) -> None:
        self.agent.kill()
        self.agent = self._start()

    def restart_holder(self) -> None:
        self.node.restart_holder()
        wait_until(lambda: self.node.claimants().get(self.key), "the mount is claimed", LIMIT_S)

    def roll_worker(self) -> None:
        (worker,) = self.cluster.workers
        worker.stop()
        worker.start()

    def be_away(self) -> None:
        self.agent.stop()
        time.sleep(AWAY_S)
        self.agent = self._start()


@contextmanager
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        root = Path(name)
        root.chmod(0o755)
        source, run, node = root / "source", root / "run", root / "node"
        for path in (source, run, node):
            path.mkdir(mode=0o755)
        for number in range(FILES):
            (source / f"f{number:04d}").write_bytes(body(number, 110_000))
        with Cluster(root / "cluster", {}) as cluster:
            cluster.start(1, "--socket", str(run / "worker.sock"))
            cluster.add_ufs(f"file://{source}", "/data")
            with PodNode(node, run / "worker.sock") as pods:
                yield Bench(pods, cluster, source)


def main() -> None:
    print(f"Longest of {TURNS} turns, in seconds; {describe()}.\n")
    print("| event | a file open and complete | open + read | stat |")
    print("|---|--:|--:|--:|")
    with bench() as one:
        for text, event in (
            ("nothing", one.nothing),
            ("agent rolled with a surge", one.roll),
            ("fuse container killed by SIGKILL, started again", one.kill_container),
            ("holder killed, started again", one.restart_holder),
            ("worker stopped, started again", one.roll_worker),
            (f"no agent for {AWAY_S:g} s", one.be_away),
        ):
            longest_s = one.measure(event)
            cells = " | ".join(f"{longest_s[kind]:.2f}" for kind in KINDS)
            print(f"| {text} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
