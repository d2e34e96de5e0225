"""`mount` is ready in < 3 s, with an empty cache and with 100,000 cached files; `cachefs --help`
takes < 0.25 s of CPU; `import cachefs` imports no server library."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.harness import Lab, main, middle
from bench.mounts import CACHEFS, BenchFailed
from bench.report import Result, Table

SERVER_LIBRARIES = ("aiohttp", "boto3", "obstore", "lmdb", "pyarrow")
LOAD_LIMIT_S = 400.0
FILE_BYTES = 64


def run(lab: Lab, result: Result) -> None:
    table = result.table(f"Seconds until `cachefs mount` returned, {lab.runs} times", "what", "s")
    empty_s = middle(first_mount(lab) for _ in range(lab.runs))
    table.add("empty cache", empty_s)
    result.bar("mount ready, empty cache", empty_s, 3.0, "s")
    cached(lab, result, table)
    help_s = middle(cpu_of("--help") for _ in range(5))
    table.add("`cachefs --help`, CPU", help_s)
    result.bar("`cachefs --help`, CPU", help_s, 0.25, "s")
    result.bar("server libraries that `import cachefs` imports", len(imported()), 0)


def first_mount(lab: Lab) -> float:
    """Mounts a source that this machine has never mounted."""
    lab.cachefs.forget()
    return timed_mount(lab, lab.fresh_cache())


def timed_mount(lab: Lab, cache: Path) -> float:
    """Mounts, stats one file, unmounts; returns the time until the mount command returned."""
    data = lab.datasets.small(lab.size(100_000, 3000), FILE_BYTES)
    flags = ("--endpoint-url", lab.origin.direct_url, "--cache-size", "2GiB")
    with lab.cachefs.mount(data.url, cache, *flags) as mount:
        if not (mount.path / data.names[0]).stat().st_size:
            raise BenchFailed("mounted, but the first file is empty")
    return mount.ready_s


def cached(lab: Lab, result: Result, table: Table) -> None:
    """Times the mount with every file of the bucket in the cache."""
    data = lab.datasets.small(lab.size(100_000, 3000), FILE_BYTES)
    flags = ("--endpoint-url", lab.origin.direct_url, "--cache-size", "2GiB")
    cache = lab.fresh_cache()
    lab.cachefs.forget()
    try:
        started = time.monotonic()
        with lab.cachefs.mount(data.url, cache, *flags) as mount:
            lab.cachefs.run("load", "--wait", mount.path, limit_s=LOAD_LIMIT_S)
        load_s = time.monotonic() - started
        took_s = middle(timed_mount(lab, cache) for _ in range(lab.runs))
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    count = f"{len(data.names):,}"
    table.add(f"{count} cached files", took_s)
    result.bar(f"mount ready, {count} cached files", took_s, 3.0, "s")
    rate = len(data.names) / load_s
    result.notes.append(f"`cachefs load --wait` of the {count} files: {rate:,.0f} files/s.")


def cpu_of(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([CACHEFS, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imported() -> list[str]:
    code = f"import cachefs, sys; print(*(set({SERVER_LIBRARIES!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.split()


if __name__ == "__main__":
    main(run)
