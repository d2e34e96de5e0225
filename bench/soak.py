"""An hour (`--minutes N`) of mixed readers, opens, listings, `free`, dropped kernel caches, and
deaths of random victims, alone and in pairs: every read is right, RssAnon and descriptors of all
processes stay flat.

Every 12 s the bench kills or stops the client, the server or the supervisor
(`bench/victims.py`): at least five SIGKILLs a minute, and stopped processes.

Flat: the peak of the last third is at most 16 MiB and 32 descriptors above that of the second. The
cache holds half of the data and admits all, so that it evicts under open files all the time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import machine
from bench.datasets import MIB, Dataset
from bench.harness import Lab, first_paragraph, labs, measure
from bench.mounts import BenchFailed, Mounted
from bench.report import Result, markdown
from bench.steady import steady
from bench.steady_readers import KINDS, Record
from bench.victims import Victims, longest_pauses
from cachefs.launcher.state import StateHome

MINUTES = 60.0
SEED = 5
GROWTH_MIB, GROWTH_DESCRIPTORS = 16.0, 32.0
SAMPLE_S = 0.5
KILL_EVERY_S = 12.0
KILLS_A_MINUTE = 5.0
HEARTBEAT_S = 3.0  # a stopped client is replaced after it, a stopped server after three of it
PAUSE_S, STOP_PAUSE_S = 15.0, 45.0  # the longest after a SIGKILL, and after a SIGSTOP
SLOW_S = 0.05  # the shortest pause
OTHER_EVERY_S = 4.0
PACE_S = 0.005


@dataclass
class Samples:
    """RssAnon in MiB and descriptors over time, by role."""

    memory_mib: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    descriptors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def take(self, running: dict[int, str]) -> None:
        """Samples the running processes; a process that ends during it is left out."""
        for pid, role in running.items():
            with contextlib.suppress(OSError):
                memory = machine.rss_anon_bytes(pid) / MIB
                count = len(os.listdir(f"/proc/{pid}/fd"))
                self.memory_mib[role].append(memory)
                self.descriptors[role].append(count)


def soak(lab: Lab, result: Result, minutes: float) -> None:
    """Runs for `minutes`; fills bars and tables."""
    data = lab.datasets.mixed(*((16, 128, 300, 300) if lab.quick else (128, 1024, 2000, 2000)))
    flags = (
        *("--transport", "kernel", "--admission", "always", "--log-level", "warning"),
        *("--heartbeat-timeout", f"{HEARTBEAT_S:g}s"),
    )
    done: dict[str, int] = defaultdict(int)
    with lab.ours(
        data.url, *flags, url=lab.origin.direct_url, cache_size=f"{data.size_bytes // 2}B"
    ) as mount:
        rng = random.Random(SEED)
        victims = Victims(StateHome(lab.cachefs.home / ".cache/cachefs"), mount.path, rng)
        steadily = steady(mount, data, list(KINDS), lab.root, PACE_S, SLOW_S)
        with steadily as readers, sampled(lab) as samples:
            others = disturbances(lab, mount, data, rng)
            for act in schedule(victims, others, minutes * 60):
                act()
                done[act.__name__] += 1
                readers.check()
        mount.pids += list(lab.cachefs.running())
    show(result, samples, readers.records, done)
    show_deaths(result, victims, readers.records)
    judge(result, samples, readers.records)
    judge_deaths(result, victims, readers.records, minutes)


Act = Callable[[], None]


def schedule(victims: Victims, others: Iterator[Act], duration_s: float) -> Iterator[Act]:
    """Yields each disturbance when it is due; ends after `duration_s`, with the last death that was
    due by then."""
    clock, deaths = threading.Event(), victims.acts()
    end_s = time.monotonic() + duration_s
    kill_at_s = time.monotonic() + KILL_EVERY_S / 2
    while min(now := time.monotonic(), kill_at_s) < end_s:
        if now >= kill_at_s:
            yield named("death", next(deaths))
            kill_at_s += KILL_EVERY_S
        else:
            yield next(others)
        now = time.monotonic()
        clock.wait(max(0.0, min(OTHER_EVERY_S, kill_at_s - now, end_s - now)))


def named(name: str, act: Act) -> Act:
    """Returns the act under the name by which it is counted."""

    def it() -> None:
        act()

    it.__name__ = name
    return it


def disturbances(lab: Lab, mount: Mounted, data: Dataset, rng: random.Random) -> Iterator[Act]:
    """Yields without end, by turns: `free` of a random file or folder, and a drop of kernel
    caches."""

    def free() -> None:
        parts = data.names[rng.randrange(len(data.names))].split("/")
        path = mount.path.joinpath(*parts[: rng.randint(1, len(parts))])
        lab.cachefs.run("free", path)

    def drop_caches() -> None:
        lab.drop_caches(dentries=rng.random() < 0.5)

    while True:
        yield free
        yield drop_caches


@contextlib.contextmanager
def sampled(lab: Lab) -> Iterator[Samples]:
    """Samples all processes of CacheFS twice a second while the block runs."""
    samples, stop = Samples(), threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_S):
            samples.take(lab.cachefs.running())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def thirds(values: list[float]) -> tuple[float, float, float]:
    """Returns the peaks of the three thirds. Raises BenchFailed if there are too few values."""
    size = len(values) // 3
    if not size:
        raise BenchFailed("the soak was too short to see a trend")
    return max(values[:size]), max(values[size : 2 * size]), max(values[-size:])


def show(result: Result, samples: Samples, records: list[Record], done: dict[str, int]) -> None:
    table = result.table("Peaks of the three thirds", "what", "first", "second", "last")
    for role in samples.memory_mib:
        table.add(f"RssAnon of the {role}, MiB", *thirds(samples.memory_mib[role]))
        table.add(f"descriptors of the {role}", *thirds(samples.descriptors[role]))
    table = result.table("Readers", "kind", "operations", "longest s")
    for record in records:
        table.add(record.kind, record.operations, record.worst_s)
    result.notes.append(
        f"Seed {SEED}; " + ", ".join(f"{what}: {count} times" for what, count in done.items())
    )


def show_deaths(result: Result, victims: Victims, records: list[Record]) -> None:
    times = Counter(death.kind for death in victims.deaths)
    table = result.table("Deaths", "what", "times", "longest pause of a reader, s")
    for kind, pause_s in sorted(longest_pauses(victims.deaths, records).items()):
        table.add(kind, times[kind], pause_s)


def judge(result: Result, samples: Samples, records: list[Record]) -> None:
    wrong = [text for record in records for text in record.wrong]
    result.bar("errors and wrong bytes", len(wrong), 0)
    result.notes += wrong[:10]
    result.bar(
        "operations of the idlest reader", min(r.operations for r in records), 1, at_least=True
    )
    for role in samples.memory_mib:
        _, second, last = thirds(samples.memory_mib[role])
        result.bar(f"growth of the {role}'s RssAnon", last - second, GROWTH_MIB, "MiB")
        _, second, last = thirds(samples.descriptors[role])
        result.bar(f"growth of the {role}'s descriptors", last - second, GROWTH_DESCRIPTORS)


def judge_deaths(result: Result, victims: Victims, records: list[Record], minutes: float) -> None:
    kills = sum(death.kills for death in victims.deaths)
    result.bar("SIGKILLs", kills, int(KILLS_A_MINUTE * minutes), at_least=True)
    for role in ("client", "server"):
        result.bar(f"SIGKILLs of the {role}", victims.killed[role], 1, at_least=True)
    pauses = longest_pauses(victims.deaths, records)
    killed = [pause_s for kind, pause_s in pauses.items() if kind.startswith("SIGKILL")]
    result.bar("longest pause after a SIGKILL", max(killed), PAUSE_S, "s")
    stopped = [pause_s for kind, pause_s in pauses.items() if kind.startswith("SIGSTOP")]
    result.bar("longest pause after a SIGSTOP", max(stopped, default=0.0), STOP_PAUSE_S, "s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--quick", action="store_true", help="small data")
    chosen = parser.parse_args()
    with labs(chosen.quick) as make_lab:
        question = first_paragraph(__doc__ or "")
        run = lambda lab, result: soak(lab, result, chosen.minutes)  # noqa: E731
        result = measure(Path(__file__).stem, question, run, make_lab)
    print(markdown(result))
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
