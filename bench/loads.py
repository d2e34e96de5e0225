"""Load jobs over TLS: 20,000 x 110 KiB at >= 0.8 x, 4 x 2 GiB at >= 0.9 x the rate of bare libcurl
that writes files; over plain HTTP at >= 0.7 x and >= 0.85 x that of obstore alone. Body bytes
exactly once; the first byte < 1 s after submit.

The job is submitted over the node's socket to an embedded server. When it has succeeded, its last
byte is durable and verified. Clients write to the same file system, and take turns with the jobs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench import machine
from bench.datasets import MIB, Dataset
from bench.harness import Lab, Pass, main, middle
from bench.mounts import BenchFailed, Mounted
from bench.origin import PLAIN, SCHEMES, TLS, Shaped
from bench.peers import CURL, OBSTORE
from bench.report import Result, Table
from cachefs.cli.session import attached
from cachefs.core import messages as m
from cachefs.core.jobs import JobSpec, JobState
from cachefs.launcher.state import StateHome
from worker.loads.schedule import PAGES_COST, REQUESTS

LARGE_REQUESTS = REQUESTS // PAGES_COST
CURL_LARGE_REQUESTS = 4
CLIENTS = {TLS: CURL, PLAIN: OBSTORE}
POLL_S = 0.02
LIMIT_S = 280.0


@dataclass(frozen=True)
class Loaded:
    """One job. `first_s`: until the first byte arrived; `loaded_s`: until the last one;
    `checked_s`: until the job succeeded."""

    first_s: float
    loaded_s: float
    checked_s: float
    cpu_s: float
    bytes: int
    files: int


def run(lab: Lab, result: Result) -> None:
    first_s = []
    for scheme in SCHEMES:
        with lab.light(scheme) as origin:
            first_s.append(small(lab, result, origin, scheme))
            large(lab, result, origin, scheme)
    result.bar("first byte after submit", max(first_s), 1.0, "s")
    result.notes.append(
        "Clients: as many threads or requests as a loader has requests in flight, "
        f"{REQUESTS} for small files and {LARGE_REQUESTS} for large ones; bare libcurl "
        f"{CURL_LARGE_REQUESTS} for these, which is its best."
    )


def small(lab: Lab, result: Result, origin: Shaped, scheme: str) -> float:
    """Returns the longest time until the first byte."""
    data = lab.datasets.small(lab.size(20_000, 4000))
    kinds = {CURL: ("curl_to_files", REQUESTS), OBSTORE: ("obstore_to_files", REQUESTS)}
    loads, plain = beside_clients(lab, origin, data, kinds)
    show(result, loads, plain, f"{len(data.names):,} files of 110 KiB over {SCHEMES[scheme]}")
    bar(result, "small files", scheme, loads, plain, {TLS: 0.8, PLAIN: 0.7})
    return max(one.first_s for one in loads)


def large(lab: Lab, result: Result, origin: Shaped, scheme: str) -> None:
    data = lab.datasets.sparse_files(4, lab.size(2048, 256))
    kinds = {
        CURL: ("curl_to_file", CURL_LARGE_REQUESTS),
        OBSTORE: ("obstore_to_file", LARGE_REQUESTS),
    }
    loads, plain = beside_clients(lab, origin, data, kinds)
    title = f"4 files of {data.size_bytes // 4 // MIB:,} MiB over {SCHEMES[scheme]}"
    show(result, loads, plain, title)
    bar(result, "large files", scheme, loads, plain, {TLS: 0.9, PLAIN: 0.85})


def beside_clients(
    lab: Lab, origin: Shaped, data: Dataset, kinds: dict[str, tuple[str, int]]
) -> tuple[list[Loaded], dict[str, list[Pass]]]:
    """Returns loads of a data set and the passes of clients (method, requests in flight), by turns:
    the load of the machine changes within minutes."""
    plain: dict[str, list[Pass]] = {who: [] for who in kinds}
    loads: list[Loaded] = []
    for _ in range(lab.runs):
        for who, (what, requests) in kinds.items():
            plain[who].append(lab.client(what, data, origin.url, requests))
        loads.append(load_once(lab, data, origin))
    return loads, plain


def bar(
    result: Result,
    what: str,
    scheme: str,
    loads: list[Loaded],
    plain: dict[str, list[Pass]],
    at_least: dict[str, float],
) -> None:
    """Adds the bar of the median ratio, within a turn, to the client of the scheme."""
    client = CLIENTS[scheme]
    turns = zip(loads, plain[client], strict=True)
    ratio = middle(alone.wall_s / one.loaded_s for one, alone in turns)
    claim = f"loading {what} over {SCHEMES[scheme]}, of {client} alone"
    result.bar(claim, ratio, at_least[scheme], "x", at_least=True)


def show(result: Result, loads: list[Loaded], plain: dict[str, list[Pass]], title: str) -> None:
    columns = ("who", "files/s", "MB/s", "CPU us per file", "s", "s with check")
    table = result.table(f"{title}, {len(loads)} runs", *columns)
    add_rows(table, loads)
    for who, passes in plain.items():
        for one in passes:
            rates = one.files_per_s, one.mb_per_s
            table.add(who, *rates, one.cpu_us_per_file, one.wall_s, None)


def add_rows(table: Table, loads: list[Loaded]) -> None:
    for one in loads:
        table.add(
            "cachefs",
            one.files / one.loaded_s,
            one.bytes / one.loaded_s / 1e6,
            one.cpu_s / one.files * 1e6,
            one.loaded_s,
            one.checked_s,
        )


def load_once(lab: Lab, data: Dataset, origin: Shaped) -> Loaded:
    """Loads into an empty cache. Raises BenchFailed unless every byte was fetched exactly once."""
    origin.post("reset", {})
    size = f"{data.size_bytes // MIB + 1024}MiB"
    with lab.ours(data.url, url=origin.url, cache_size=size) as mount:
        loaded = load(lab, mount, data)
    body_bytes = origin.counters()["object_bytes"]
    if body_bytes != data.size_bytes:
        raise BenchFailed(f"{body_bytes:,} body bytes of {data.size_bytes:,}")
    return loaded


def load(lab: Lab, mount: Mounted, data: Dataset) -> Loaded:
    """Runs one job of everything below a mount."""
    record = StateHome(lab.cachefs.home / ".cache/cachefs").find_mount(str(mount.path))
    if record is None:
        raise BenchFailed("the mount has no record")
    pids = mount.only("server").pids
    before_s = machine.cpu_s(pids)
    first_s = loaded_s = 0.0
    with attached(record) as session:
        started = time.monotonic()
        spec = JobSpec((b"/",))
        job = session.call(m.SubmitJob(session.namespace, spec), m.JobSubmitted).job
        while True:
            shown = session.call(m.GetJob(session.namespace, job), m.JobReply).job
            at_s = time.monotonic() - started
            first_s = first_s or (at_s if shown.bytes_fetched else 0.0)
            if not loaded_s and shown.bytes_fetched >= data.size_bytes:
                loaded_s = at_s
            if shown.state.has_ended or at_s > LIMIT_S:
                break
            time.sleep(POLL_S)
    if shown.state is not JobState.SUCCEEDED or shown.files_done != len(data.names):
        raise BenchFailed(
            f"the job {shown.state.value}: {shown.message} ({shown.files_done} files)"
        )
    cpu_s = machine.cpu_s(pids) - before_s
    return Loaded(first_s, loaded_s or at_s, at_s, cpu_s, data.size_bytes, len(data.names))


if __name__ == "__main__":
    main(run)
