"""A manifest of 1,000,000 names that the server never listed, in 1,000 folders, 20 ms from the
store: <= 10 s, and <= 0.2 s refreshed where nothing changed. The maps of a trainer and its 8
loaders take <= 1.1 x the memory (PSS) of those of one process.

The store is `bench/listing_origin.py`, which computes its names. The manifest is built in a process
of its own. Loaders are forked from it, as by `cachefs.torch.DataLoader`, and each reads the record
of every file and collects garbage. The second table also has the memory of whole processes,
interpreters included.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench import machine
from bench.first_sync import origin
from bench.harness import Lab, main, middle
from bench.origin import REPOSITORY
from bench.report import Result
from cachefs.trainers.manifest import Manifest

NAMES: Final = 1_000_000
LATENCY_S: Final = 0.02
BUILD_S, REFRESH_S, SHARED_X = 10.0, 0.2, 1.1
LOADERS: Final = 8
PASS_LIMIT_S: Final = 900.0
MIB: Final = 1 << 20
Figures = dict[str, Any]


def run(lab: Lab, result: Result) -> None:
    count = lab.size(NAMES, 50_000)
    table = result.table(
        f"{count:,} names", "shape", "latency ms", "built s", "its CPU s", "server's CPU s",
        "refreshed s", "peak RSS MiB",
    )  # fmt: skip
    found: Figures = {}
    for bucket, latency_s in (("flat", 0.0), ("tree", 0.0), ("tree", LATENCY_S)):
        with origin(count, latency_s) as url:
            passes = [measured(lab, bucket, url, count) for _ in range(lab.runs)]
        found = {key: middle(one[key] for one in passes) for key in passes[0]}
        table.add(
            bucket, latency_s * 1e3, found["built_s"], found["cpu_s"], found["server_cpu_s"],
            found["refreshed_s"], found["peak_mib"],
        )  # fmt: skip
    result.bar("built, 1,000 a folder, 20 ms", found["built_s"], BUILD_S, "s")
    result.bar("refreshed, nothing changed", found["refreshed_s"], REFRESH_S, "s")
    memory = result.table("Memory (PSS), MiB", "processes", "the maps", "whole processes")
    memory.add("a trainer", found["map_mib"], found["process_mib"])
    memory.add(f"it and {LOADERS} loaders", found["maps_mib"], found["processes_mib"])
    ratio = found["maps_mib"] / found["map_mib"]
    result.bar(f"the maps of {1 + LOADERS} processes, of one's", ratio, SHARED_X, "x")


def measured(lab: Lab, bucket: str, url: str, count: int) -> Figures:
    home = lab.cachefs.home / ".cache/cachefs"
    with lab.ours(f"s3://{bucket}/", "--transport", "kernel", url=url) as mount:
        before_s = machine.cpu_s(mount.pids)
        command = [sys.executable, "-m", "bench.manifests", "child", str(mount.path), str(home)]
        done = subprocess.run(
            command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, timeout=PASS_LIMIT_S
        )
        found: Figures = json.loads(done.stdout)
        assert found.pop("files") == count, "the manifest lacks names"
        return {**found, "server_cpu_s": machine.cpu_s(mount.pids) - before_s}


# ---- in a process of its own ---------------------------------------------------------------------


def child(path: str, home: str) -> Figures:
    built_s, cpu_s, manifest = timed(lambda: Manifest(path, home=home))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    refreshed_s, _, _ = timed(manifest.refresh)
    look(manifest)
    one, many = pss_mib(), loaders(manifest)
    return {
        "files": len(manifest), "built_s": built_s, "cpu_s": cpu_s, "refreshed_s": refreshed_s,
        "peak_mib": peak_mib, "map_mib": one[0], "process_mib": one[1], "maps_mib": many[0],
        "processes_mib": many[1],
    }  # fmt: skip


def timed(act: Callable[[], Any]) -> tuple[float, float, Any]:
    cpu_s, started = time.process_time(), time.perf_counter()
    result = act()
    return time.perf_counter() - started, time.process_time() - cpu_s, result


def look(manifest: Manifest) -> None:
    """Reads the record of every file."""
    sum(manifest.size(i) + len(manifest.file(i)) for i in range(len(manifest)))


def loaders(manifest: Manifest) -> tuple[float, float]:
    """Returns the PSS of the maps, and of all memory, of this process and its forked loaders, each
    of which has read every record (MiB)."""
    fork = multiprocessing.get_context("fork")
    ready, go, results = fork.Semaphore(0), fork.Event(), fork.SimpleQueue()

    def load() -> None:
        look(manifest)
        gc.collect()
        ready.release()
        go.wait()
        results.put(pss_mib())
        ended.wait()

    ended = fork.Event()
    processes = [fork.Process(target=load) for _ in range(LOADERS)]
    gc.freeze()  # as DataLoader does
    for process in processes:
        process.start()
    gc.unfreeze()
    for _ in processes:
        ready.acquire()
    go.set()
    found = [results.get() for _ in processes] + [pss_mib()]
    ended.set()
    for process in processes:
        process.join()
    return sum(maps for maps, _ in found), sum(whole for _, whole in found)


def pss_mib() -> tuple[float, float]:
    """Returns the PSS of the manifest's maps, and of the whole process (MiB)."""
    maps_kib = whole_kib = 0
    is_manifest = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            whole_kib += int(value.split()[0])
            maps_kib += int(value.split()[0]) if is_manifest else 0
        elif "-" in name.split(" ")[0] and name[0] in "0123456789abcdef":
            is_manifest = line.endswith((".inos", ".names"))
    return maps_kib / 1024, whole_kib / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(child(*sys.argv[2:4])))
    else:
        main(run)
