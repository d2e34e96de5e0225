"""Load jobs: 20,000 x 110 KiB at >= 0.7 x, 4 x 2 GiB at >= 0.85 x the rate of obstore alone with as
many requests in flight; body bytes exactly once; the first byte < 1 s after submit.

The job is submitted over the node's socket to an embedded server; its last byte is durable and
checked when it has succeeded. obstore writes to the same file system; what it takes for small
objects of which it keeps nothing stands beside it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench import machine
from bench.datasets import MIB, Dataset
from bench.harness import Lab, Pass, main, median, middle
from bench.mounts import BenchFailed, Mounted
from bench.origin import Shaped
from bench.report import Result, Table
from cachefs.cli.session import attached
from cachefs.core import messages as m
from cachefs.core.jobs import JobSpec, JobState
from cachefs.launcher.state import StateHome
from worker.state.loading import PAGES_COST, REQUESTS

LARGE_REQUESTS = REQUESTS // PAGES_COST
POLL_S = 0.02
LIMIT_S = 280.0


@dataclass(frozen=True)
class Loaded:
    """One job. `first_s`: until bytes came; `loaded_s`: until the last did; `checked_s`: until the
    job had succeeded."""

    first_s: float
    loaded_s: float
    checked_s: float
    cpu_s: float
    bytes: int
    files: int


def run(lab: Lab, result: Result) -> None:
    with lab.light() as origin:
        small(lab, result, origin)
        large(lab, result, origin)
    result.notes.append(
        "obstore: as many threads as a loader has requests in flight, "
        f"{REQUESTS} for small files and {LARGE_REQUESTS} for large ones."
    )


def small(lab: Lab, result: Result, origin: Shaped) -> None:
    data = lab.datasets.small(lab.size(20_000, 4000))
    title = f"{len(data.names):,} files of 110 KiB, {lab.runs} runs"
    loads, plain, table = beside_obstore(
        lab, result, origin, data, ("obstore_to_files", REQUESTS), title
    )
    kept_nothing = peer(lab, origin, data, "obstore_files")
    add_peer(table, "obstore, of which nothing is kept", kept_nothing)
    result.bar(
        "loading small files, of obstore alone", of_obstore(loads, plain), 0.7, "x", at_least=True
    )
    result.bar("first byte after submit", max(one.first_s for one in loads), 1.0, "s")


def large(lab: Lab, result: Result, origin: Shaped) -> None:
    data = lab.datasets.sparse_files(4, lab.size(2048, 256))
    title = f"4 files of {data.size_bytes // 4 // MIB:,} MiB, {lab.runs} runs"
    loads, plain, _ = beside_obstore(
        lab, result, origin, data, ("obstore_to_file", LARGE_REQUESTS), title
    )
    result.bar(
        "loading large files, of obstore alone", of_obstore(loads, plain), 0.85, "x", at_least=True
    )


def beside_obstore(
    lab: Lab, result: Result, origin: Shaped, data: Dataset, alone: tuple[str, int], title: str
) -> tuple[list[Loaded], list[Pass], Table]:
    """Loads of a data set, and what obstore alone takes for it (what it does, in how many threads),
    in turns: what else the machine does changes within minutes."""
    what, threads = alone
    plain: list[Pass] = []
    loads: list[Loaded] = []
    for _ in range(lab.runs):
        plain.append(lab.obstore(what, data, origin.url, threads))
        loads.append(load_once(lab, data, origin))
    table = result.table(title, "who", "files/s", "MB/s", "CPU us per file", "s", "s with check")
    add_rows(table, loads)
    for one in plain:
        add_peer(table, "obstore", one)
    return loads, plain, table


def peer(lab: Lab, origin: Shaped, data: Dataset, what: str) -> Pass:
    """The median of what obstore alone takes."""
    return median(lab.obstore(what, data, origin.url, REQUESTS) for _ in range(lab.runs))


def of_obstore(loads: list[Loaded], plain: list[Pass]) -> float:
    """The median of the ratios within a turn."""
    turns = zip(loads, plain, strict=True)
    return middle(alone.wall_s / one.loaded_s for one, alone in turns)


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


def add_peer(table: Table, who: str, plain: Pass) -> None:
    table.add(who, plain.files_per_s, plain.mb_per_s, plain.cpu_us_per_file, plain.wall_s, None)


def load_once(lab: Lab, data: Dataset, origin: Shaped) -> Loaded:
    """Into an empty cache. Raises BenchFailed unless every byte came exactly once."""
    origin.post("reset", {})
    size = f"{data.size_bytes // MIB + 1024}MiB"
    with lab.ours(data.url, url=origin.url, cache_size=size) as mount:
        loaded = load(lab, mount, data)
    body_bytes = origin.counters()["object_bytes"]
    if body_bytes != data.size_bytes:
        raise BenchFailed(f"{body_bytes:,} body bytes of {data.size_bytes:,}")
    return loaded


def load(lab: Lab, mount: Mounted, data: Dataset) -> Loaded:
    """One job of everything below a mount."""
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
