"""Covers under readers: 1,000 covers and uncovers under 4 readers with no error, no wrong byte and
no open longer than 20 ms; client, supervisor and server SIGKILLed at random moments while readers
use covered paths by name, directory descriptor, working directory and mapping, with no error.

The readers are in Python and share the cores with the mount's processes, so an open may wait for a
core. The kernel counts how long a process waits so (`/proc/self/schedstat`): "awake" is the time of
an open without that. An open by a cover concerns no other process, so its time awake is what covers
cost; the limit holds for that. An open by FUSE waits for the client, too, which waits for a core in
its turn. So the longest of all has the longest of two peers as its limit, if that is above 20 ms:
native, which are the same inodes by their own names while as many covers come and go; and the same
files by FUSE for as long, without any cover. `CACHEFS_BENCH_SEED=N` repeats a run's kills.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.cover_readers import BY_CWD, BY_DIRECTORY, BY_MAP, BY_PATH, Opened, Spec
from bench.datasets import Dataset
from bench.harness import Lab, main, middle
from bench.mounts import BenchFailed, Mounted
from bench.native_views import FLAGS, freeze, own_names
from bench.origin import REPOSITORY
from bench.report import Result
from cachefs.cli.session import attached, find_target
from cachefs.core import messages as m
from cachefs.launcher.state import StateHome
from tests.services.processes import is_running, wait_until

SEED = int(os.environ.get("CACHEFS_BENCH_SEED", "0")) or random.randrange(1, 1 << 20)
READERS = 4
LONGEST_MS = 20.0
NATIVE, MOUNT, FUSE = "native", "mount", "mount, never covered"
KINDS = (BY_PATH, BY_DIRECTORY, BY_CWD, BY_MAP)
ROLES = ("client", "supervisor", "server")
CLIENT_KILLS = 4  # at once: the supervisor gives up a client that dies six times in ten seconds
QUIET_S = 10.6
MOST_BETWEEN_S = 0.5
SUCCESSOR_LIMIT_S = 30.0
END_LIMIT_S = 30.0
PACE_S = 0.001


@dataclass
class Group:
    """Readers of one block."""

    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    opened: list[Opened] = field(default_factory=list)

    def start(self, spec: Spec) -> None:
        path = self.folder / f"reader-{len(self.running)}.json"
        path.write_bytes(msgspec.json.encode(spec))
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.cover_readers", str(path)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise BenchFailed(f"the reader by {spec.kind} did not start")

    def stop(self) -> None:
        for process in self.running:
            text, _ = process.communicate(timeout=END_LIMIT_S)
            if process.returncode:
                raise BenchFailed(f"a reader ended with {process.returncode}")
            self.opened.append(msgspec.json.decode(text, type=Opened))

    @property
    def wrong(self) -> list[str]:
        return [f"by {one.kind}: {text}" for one in self.opened for text in one.wrong]


@contextlib.contextmanager
def reading(lab: Lab, specs: Sequence[Spec]) -> Iterator[Group]:
    """Runs readers during the block, and collects what they opened."""
    group = Group(lab.root)
    try:
        for spec in specs:
            group.start(spec)
        yield group
        group.stop()
    finally:
        for process in group.running:
            process.kill()
            process.wait()


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(500, 100))
    with lab.ours(data.url, *FLAGS, url=lab.origin.direct_url) as mount:
        try:
            switches(lab, result, mount, data)
            for top in (mount.path, mount.path / Path(data.names[0]).parts[0]):
                kills(lab, result, mount, data, top)
        finally:
            mount.pids += list(lab.cachefs.running())
    result.notes.append(f"Seed of the kills: {SEED}.")


# ---- covers that come and go ---------------------------------------------------------------------


def switches(lab: Lab, result: Result, mount: Mounted, data: Dataset) -> None:
    count = lab.size(1000, 20)
    freeze(lab, mount.path)
    checksums = msgspec.json.decode(data.checksums.read_bytes(), type=dict[str, str])
    own = [str(path) for path in own_names(mount, data)]
    native = [(path, checksums[name]) for path, name in zip(own, data.names, strict=True)]
    lab.cachefs.run("thaw", mount.path)
    groups: dict[str, Group] = {}
    took_s: list[float] = []
    names = [*checksums.items()]
    for who, root, files in (
        (NATIVE, "/", native), (MOUNT, str(mount.path), names), (FUSE, str(mount.path), names),
    ):  # fmt: skip
        specs = [Spec(BY_PATH, root, files, seed) for seed in range(READERS)]
        with reading(lab, specs) as groups[who]:
            if who == FUSE:
                threading.Event().wait(sum(took_s))
            else:
                took_s = switch(lab, mount, count)
    show_switches(result, groups, count)
    result.notes.append(f"A freeze and a thaw took {middle(took_s) * 1e3:.1f} ms (median).")


def show_switches(result: Result, groups: dict[str, Group], count: int) -> None:
    title = f"{READERS} readers, {count:,} covers and uncovers"
    table = result.table(title, "who", "opens", "median, us", "longest, ms", "awake, ms")
    longest_ms = {}
    for who, group in groups.items():
        median_us = statistics.median(one.median_s for one in group.opened) * 1e6
        longest_ms[who] = max(one.longest_s for one in group.opened) * 1e3
        awake_ms = max(one.longest_awake_s for one in group.opened) * 1e3
        opens = sum(one.opens for one in group.opened)
        table.add(who, opens, median_us, longest_ms[who], awake_ms)
    covered = groups[MOUNT].opened
    awake_ms = max(one.longest_covered_awake_s for one in covered) * 1e3
    result.notes.append(f"{sum(one.covered for one in covered):,} opens of the mount by covers.")
    wrong = groups[MOUNT].wrong
    result.bar("covers and uncovers: errors and wrong bytes", len(wrong), 0)
    result.bar("covers and uncovers: longest open by a cover, awake", awake_ms, LONGEST_MS, "ms")
    limit_ms = max(LONGEST_MS, longest_ms[NATIVE], longest_ms[FUSE])
    result.bar("covers and uncovers: longest open", longest_ms[MOUNT], limit_ms, "ms")
    result.notes += wrong[:5]


def switch(lab: Lab, mount: Mounted, count: int) -> list[float]:
    """Freezes and thaws; returns how long each round took. Raises BenchFailed if a round had no
    cover."""
    home, took_s = StateHome(str(lab.cachefs.home / ".cache/cachefs")), []
    with attached(find_target(str(mount.path), home).record) as session:
        for _ in range(count):
            began_s = time.monotonic()
            (view,) = session.call(m.Freeze(session.namespace, b"", True), m.ViewTable).views
            if view.state != "covered":
                raise BenchFailed(f"not covered: {view.state}, {view.reason}")
            session.call(m.Thaw(session.namespace, b""), m.Done)
            took_s.append(time.monotonic() - began_s)
    return took_s


# ---- kills ---------------------------------------------------------------------------------------


def kills(lab: Lab, result: Result, mount: Mounted, data: Dataset, top: Path) -> None:
    """Kills processes while the directory `top` is covered at first."""
    where = "the mount point" if top == mount.path else "a directory below"
    freeze(lab, top)
    checksums = msgspec.json.decode(data.checksums.read_bytes(), type=dict[str, str])
    below = os.path.relpath(top, mount.path)
    files = [
        (os.path.relpath(name, below), digest)
        for name, digest in checksums.items()
        if below == "." or name.startswith(f"{below}/")
    ]
    specs = [Spec(kind, str(top), files, seed, PACE_S) for seed, kind in enumerate(KINDS)]
    with reading(lab, specs) as group:
        killed = disturb(lab, mount, lab.size(5, 1))
    freeze(lab, top)
    lab.cachefs.run("thaw", top)
    table = result.table(
        f"{killed} kills, {where} was covered", "reader by", "opens", "median, us", "longest, ms"
    )
    for one in group.opened:
        table.add(one.kind, one.opens, one.median_s * 1e6, one.longest_s * 1e3)
    result.bar(f"kills, {where}: errors and wrong bytes", len(group.wrong), 0)
    result.notes += group.wrong[:5]


def disturb(lab: Lab, mount: Mounted, bursts: int) -> int:
    """Kills each process a few times, in random orders and at random moments; returns how often."""
    rng, clock, killed = random.Random(SEED), threading.Event(), 0
    for number in range(bursts):
        if number:
            clock.wait(QUIET_S)
        for _ in range(CLIENT_KILLS):
            for role in rng.sample(ROLES, len(ROLES)):
                kill(lab, mount, role)
                killed += 1
                clock.wait(rng.uniform(0, MOST_BETWEEN_S))
    return killed


def kill(lab: Lab, mount: Mounted, role: str) -> None:
    """Kills the process of a role, and waits for its successor: a mount whose client and supervisor
    die together ends."""
    pid = pids(lab, mount).get(role, 0)
    if not pid:
        raise BenchFailed(f"no {role}")
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: {*ROLES} <= {*(found := pids(lab, mount))} and found[role] != pid,
        f"a successor of the {role}",
        SUCCESSOR_LIMIT_S,
    )


def pids(lab: Lab, mount: Mounted) -> dict[str, int]:
    """Returns the processes of the mount that run, none while the server does not answer."""
    try:
        found = {process["role"]: process["pid"] for process in lab.cachefs.processes(mount.path)}
    except (BenchFailed, subprocess.TimeoutExpired):
        return {}
    return {role: pid for role, pid in found.items() if is_running(pid)}


if __name__ == "__main__":
    main(run)
