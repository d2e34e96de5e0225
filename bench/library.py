"""The library: a process reads cold shuffled files of 110 KiB, 20 ms from the origin, in batches of
256 at >= 0.8 x the rate of bare CurlMulti with 256 in flight. Warm batches: >= 0.95 x native
`os.open` and `read`. fsspec's `open` and `read`: <= 1.3 x a path's time. pyarrow, 40 columns of a
Parquet file: <= 1.15 x a path's time.

The paths are those of native files on tmpfs, where the cache is, too. Contenders of a bar take
turns. Warm figures are of this process, whose other work is nothing.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import cachefs
from bench.datasets import Dataset
from bench.harness import Lab, Pass, main
from bench.library_reads import batches
from bench.mounts import BenchFailed, Mounted
from bench.origin import SCHEMES
from bench.peers import CURL, Act, medians, show, turns
from bench.report import Result

LATENCY_S = 0.02
IN_FLIGHT = 256
BATCHES = "cachefs, batches of 256"
CURL_TO_FILES = "bare libcurl, each into a new file"
COLUMNS = 40
TURNS = 9
FLAGS = ("--transport", "kernel")

Way = Callable[[], object]


def run(lab: Lab, result: Result) -> None:
    cold_batches(lab, result)
    data = lab.datasets.small(lab.size(4000, 500))
    with lab.ours(f"file://{data.folder}", *FLAGS, covers=False) as mount:
        warm_files(lab, result, data, mount)
    tables = lab.root / "tables"
    tables.mkdir()
    write_table(tables / "wide.parquet", lab.size(400_000, 50_000))
    with lab.ours(f"file://{tables}", *FLAGS) as mount:
        warm_columns(lab, result, tables, mount)


# ---- cold ----------------------------------------------------------------------------------------


def cold_batches(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(8000, 1500))
    contenders = {}
    with ExitStack() as stack:
        for scheme in SCHEMES:
            origin = stack.enter_context(lab.light(scheme))
            origin.shape(None, LATENCY_S)
            contenders[scheme] = against(lab, data, origin.url)
        passes = turns(lab, contenders)
    show(
        result, f"{len(data.names):,} cold files of 110 KiB, one process, shuffled", passes,
        ("files/s", "CPU us per file"), lambda one: (one.files_per_s, one.cpu_us_per_file),
    )  # fmt: skip
    for scheme, of_scheme in passes.items():
        found = medians(of_scheme)
        ratio = found[BATCHES].files_per_s / found[CURL].files_per_s
        claim = f"cold batches over {SCHEMES[scheme]}, of bare libcurl's rate"
        result.bar(claim, ratio, 0.8, "x", at_least=True)
    result.notes.append("CPU: of the server's processes; the whole process of libcurl.")


def against(lab: Lab, data: Dataset, url: str) -> dict[str, Act]:
    def ours() -> Pass:
        with lab.ours(data.url, *FLAGS, url=url) as mount:
            return lab.read(mount, data, what="library_batches", destination=home_of(lab))

    return {
        BATCHES: ours,
        CURL: lambda: lab.client("curl_files", data, url, IN_FLIGHT),
        CURL_TO_FILES: lambda: lab.client("curl_to_files", data, url, IN_FLIGHT),
    }


def home_of(lab: Lab) -> str:
    """Returns the state home of the lab's mounts."""
    return str(lab.cachefs.home / ".cache" / "cachefs")


# ---- warm ----------------------------------------------------------------------------------------


def warm_files(lab: Lab, result: Result, data: Dataset, mount: Mounted) -> None:
    import fsspec

    names = [*data.names]
    random.Random(2).shuffle(names)
    tree = cachefs.tree(str(mount.path), home=home_of(lab))
    system = fsspec.filesystem("cachefs", home=home_of(lab))
    for batch in batches(names):
        expected = [read_native(f"{data.folder}/{name}") for name in batch]
        if tree.read_batch(batch) != expected:
            raise BenchFailed("the library read wrong bytes")

    def by_native() -> None:
        for batch in batches(names):
            [read_native(f"{data.folder}/{name}") for name in batch]

    def by_batches() -> None:
        for batch in batches(names):
            tree.read_batch(batch)

    def by_paths(folder: Path) -> None:
        for name in names:
            with open(f"{folder}/{name}", "rb") as file:
                file.read()

    def by_fsspec() -> None:
        for name in names:
            with system.open(f"{mount.path}/{name}") as file:
                file.read()

    def by_library() -> None:
        for name in names:
            with cachefs.open(f"{mount.path}/{name}", home=home_of(lab)) as file:
                file.read()

    ways: dict[str, Way] = {
        "native os.open, read, 256 kept": by_native,
        "batches of 256": by_batches,
        "native open(): path": lambda: by_paths(data.folder),
        "fsspec, open": by_fsspec,
        "cachefs.open": by_library,
        "open() through the mount": lambda: by_paths(mount.path),
    }
    took = compare(ways)
    cachefs.close()  # its server ends with the mount
    table = result.table(
        f"{len(names):,} warm files of 110 KiB, one process, shuffled, median of {TURNS}",
        *("way", "files/s", "CPU us per file"),
    )
    for way, (wall_s, cpu_s) in took.items():
        table.add(way, len(names) / wall_s, cpu_s / len(names) * 1e6)
    ratio = took["native os.open, read, 256 kept"][0] / took["batches of 256"][0]
    result.bar("warm batches, of native os.open and read", ratio, 0.95, "x", at_least=True)
    ratio = took["fsspec, open"][0] / took["native open(): path"][0]
    result.bar("fsspec, open and read, of a path's time", ratio, 1.3, "x")


def warm_columns(lab: Lab, result: Result, tables: Path, mount: Mounted) -> None:
    import fsspec
    import pyarrow.parquet as pq

    import cachefs.arrow

    names = [f"c{number:02d}" for number in range(COLUMNS)]
    ours = cachefs.arrow.filesystem(str(mount.path), home=home_of(lab))
    system = fsspec.filesystem("cachefs", home=home_of(lab))
    native, mounted = str(tables / "wide.parquet"), str(mount.path / "wide.parquet")
    with open(mounted, "rb", buffering=0) as file:  # cold: the whole file is cached then
        while file.read(1 << 20):
            pass
    expected = pq.read_table(native)
    ways: dict[str, Way] = {
        "native path": lambda: pq.read_table(native, columns=names),
        "cachefs.arrow": lambda: pq.read_table("wide.parquet", filesystem=ours, columns=names),
        "path on the mount": lambda: pq.read_table(mounted, columns=names),
        "fsspec": lambda: pq.read_table(mounted, filesystem=system, columns=names),
    }
    for way, read in ways.items():
        if read() != expected:
            raise BenchFailed(f"{way} read wrong columns")
    took = compare(ways)
    cachefs.close()
    title = f"{COLUMNS} columns of a Parquet file of {os.path.getsize(native) >> 20} MiB"
    table = result.table(f"{title}, median of {TURNS}", "way", "ms", "CPU ms")
    for way, (wall_s, cpu_s) in took.items():
        table.add(way, wall_s * 1e3, cpu_s * 1e3)
    ratio = took["cachefs.arrow"][0] / took["native path"][0]
    result.bar("pyarrow, 40 columns, of a path's time", ratio, 1.15, "x")


def compare(ways: dict[str, Way]) -> dict[str, tuple[float, float]]:
    """Returns the median wall and CPU time (s) of each way. The ways take turns."""
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(TURNS):
        for way, act in ways.items():
            cpu_s, started = time.process_time(), time.perf_counter()
            act()
            took[way].append((time.perf_counter() - started, time.process_time() - cpu_s))
    return {
        way: (statistics.median(w for w, _ in some), statistics.median(c for _, c in some))
        for way, some in took.items()
    }


def read_native(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def write_table(path: Path, rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random_columns = np.random.default_rng(1)
    columns = {f"c{n:02d}": random_columns.integers(0, 2**40, rows) for n in range(COLUMNS)}
    pq.write_table(
        pa.table(columns), path, row_group_size=50_000, compression="none", use_dictionary=False
    )


if __name__ == "__main__":
    main(run)
