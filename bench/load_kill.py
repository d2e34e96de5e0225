"""A cluster loads 20,000 files of 110 KiB. Its master is killed at 30 % of the bytes, one of its
two workers at 60 %, and both are restarted. The job succeeds with every file, the origin sends <=
1.02 x the bytes of the files, and a second load of the same fetches none.

Both are killed with SIGKILL. A shaped origin makes the load long enough that both die during it.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from bench.datasets import MIB, Dataset
from bench.harness import Lab, main
from bench.mounts import BenchFailed
from bench.origin import Shaped
from bench.report import Result
from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError
from cachefs.core.jobs import JobSpec, JobState, JobStatus
from tests.services.cluster import Cluster, ClusterFailed
from tests.services.processes import NotInTime, wait_until

NODES = 2
MASTER_AT, WORKER_AT = 0.3, 0.6  # of the bytes
AGAIN = 1.02
LIMIT_S = 240.0
RATE_BYTES_S, LATENCY_S = 150e6, 0.005  # of the origin


@dataclass(frozen=True)
class Load:
    """A job that has ended, and the bytes that its origin sent."""

    name: str
    shown: JobStatus
    body_bytes: int
    wall_s: float
    killed_at: tuple[float, ...]  # of the bytes


class Loads:
    """Jobs of a cluster whose processes die: requests without a reply are retried."""

    def __init__(self, cluster: Cluster, origin: Shaped) -> None:
        self._cluster = cluster
        self._origin = origin
        with closing(self._client()) as client:
            self._namespace = client.call(c.Greeting(), c.Greeted).namespace

    def _client(self) -> HttpClient:
        return HttpClient(self._cluster.master.url, self._cluster.security)

    def body_bytes(self) -> int:
        return int(self._origin.counters()["object_bytes"])

    def submit(self, path: bytes) -> int:
        with closing(self._client()) as client:
            call = m.SubmitJob(self._namespace, JobSpec((path,)))
            return client.call(call, m.JobSubmitted).job

    def shown(self, job: int) -> JobStatus | None:
        """Returns the state of a job; None while no master answers."""
        with closing(self._client()) as client:
            try:
                return client.call(m.GetJob(self._namespace, job), m.JobReply).job
            except CacheFSError:
                return None

    def come_to(self, wanted_bytes: float) -> None:
        """Waits until the origin has sent `wanted_bytes`. Raises NotInTime."""
        wait_until(lambda: self.body_bytes() >= wanted_bytes, "the origin has sent enough", LIMIT_S)

    def ended(self, job: int) -> JobStatus:
        """Waits until a job has ended or stopped. Raises NotInTime with its last state."""
        last: list[JobStatus | None] = [None]

        def is_over() -> JobStatus | None:
            shown = self.shown(job)
            last[0] = shown or last[0]
            over = shown is not None and (shown.state.has_ended or shown.state is JobState.STOPPED)
            return shown if over else None

        try:
            found: JobStatus = wait_until(is_over, f"job {job} has ended", LIMIT_S)
        except NotInTime as err:
            raise NotInTime(f"{err}; last seen: {last[0]}") from err
        return found


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(20_000, 4000))
    room = f"{data.size_bytes // MIB + 512}MiB"
    try:
        with lab.light() as origin, Cluster(lab.root / "cluster", lab.origin.credentials) as it:
            origin.shape(RATE_BYTES_S, LATENCY_S)
            it.start(NODES, size=room)
            it.add_ufs(data.url, "/data", "--endpoint-url", origin.url)
            it.wait_until_settled()
            killed = load(it, Loads(it, origin), data, kill=True)
            again = load(it, Loads(it, origin), data, kill=False)
    except (ClusterFailed, NotInTime, CacheFSError) as err:
        raise BenchFailed(str(err)) from err
    table = result.table(
        f"{len(data.names):,} files of 110 KiB, {NODES} workers",
        "load", "ended", "files", "failed", "body bytes", "ratio", "s",
    )  # fmt: skip
    for one in (killed, again):
        shown, ratio = one.shown, f"{one.body_bytes / data.size_bytes:.4f}"
        state = shown.state.value
        table.add(
            one.name, state, shown.files_done, shown.files_failed, one.body_bytes, ratio, one.wall_s
        )
        if shown.state is not JobState.SUCCEEDED or shown.files_done != len(data.names):
            raise BenchFailed(f"the {one.name} {state}, {shown.files_done:,} files {shown.message}")
    at = ", ".join(f"{share:.0%}" for share in killed.killed_at)
    result.notes.append(f"Killed (the master, then a worker) at these shares of the bytes: {at}.")
    result.bar("bytes from the origin, of the files'", killed.body_bytes / data.size_bytes, AGAIN)
    result.bar("bytes that a second load fetches", again.body_bytes, 0, "B")


def load(cluster: Cluster, loads: Loads, data: Dataset, *, kill: bool) -> Load:
    """Runs one job of all files, with or without kills."""
    before, started, killed_at = loads.body_bytes(), time.monotonic(), list[float]()
    job = loads.submit(b"/data")
    victims = ((MASTER_AT, cluster.master), (WORKER_AT, cluster.workers[-1])) if kill else ()
    for share, victim in victims:
        loads.come_to(before + share * data.size_bytes)
        victim.kill()
        killed_at.append((loads.body_bytes() - before) / data.size_bytes)
        victim.start()
    shown = loads.ended(job)
    wall_s = time.monotonic() - started
    name = "load with two deaths" if kill else "second load"
    return Load(name, shown, loads.body_bytes() - before, wall_s, tuple(killed_at))


if __name__ == "__main__":
    main(run)
