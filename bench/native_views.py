"""Frozen directories: files of 110 KiB opened and read by 4 and 16 processes, names kept and
dropped, >= 0.95 x native; open + close and find + stat >= 0.9 x. Freezing 100,000 complete files:
<= 20 us of CPU each, covered <= 3 s after the last byte, <= 350 bytes of kernel memory each on
tmpfs; thawed within 1 s; RssAnon of the server flat. A thaw returns when no mount is covered; what
the server does then, until all files are back in admission, is measured on its own.

Native are the same inodes by their own names in the cache directory. The readers are a program in C
(`bench/open_reader.c`), as one in Python takes longer than what it measures. Passes of both take
turns, ratios are taken within a turn. Every byte was compared with its checksum, through the cover,
before the clock started. `CACHEFS_BENCH_FROZEN=1000000` freezes as many files instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from bench import machine
from bench.datasets import MIB, Dataset
from bench.harness import Lab, main, middle
from bench.kernel_memory import kernel_bytes_of
from bench.memory import GROWTH_LIMIT_MIB, sampled
from bench.mounts import BenchFailed, Mounted
from bench.open_reader import Reader
from bench.readers import cpu_s
from bench.report import Result
from tests.services.processes import wait_until

FEW, MANY = 4, 16
DURATION_S = 0.6
FROZEN = int(os.environ.get("CACHEFS_BENCH_FROZEN", "100000"))
PER_FOLDER = 1000
CPU_LIMIT_US, COVERED_LIMIT_S, KERNEL_LIMIT_BYTES, THAW_LIMIT_S = 20.0, 3.0, 350.0, 1.0
COMMAND_LIMIT_S = 1800.0
FLAGS = ("--transport", "kernel", "--sync-interval", "1d")
NATIVE, COVER = "native", "cover"


class Figures(NamedTuple):
    """Of one pass. `cpu_us`: of the readers, for each file."""

    files_per_s: float
    cpu_us: float


Passes = dict[tuple[str, str], list[Figures]]


class Work(NamedTuple):
    """What one pass does. `seconds` 0: each file once. `drops`: the kernel's names go before."""

    name: str
    processes: int
    what: str
    seconds: float
    drops: bool
    limit: float


def reads(processes: int, *, drops: bool) -> Work:
    name = f"open + read + close, {processes} processes, names {'dropped' if drops else 'kept'}"
    return Work(name, processes, "read", 0.0 if drops else DURATION_S, drops, 0.95)


def opens(processes: int) -> Work:
    return Work(f"open + close, {processes} processes", processes, "open", DURATION_S, False, 0.9)


WORKS = [
    *(reads(processes, drops=drops) for processes in (FEW, MANY) for drops in (False, True)),
    *(opens(processes) for processes in (FEW, MANY)),
]


def run(lab: Lab, result: Result) -> None:
    rates(lab, result)
    with tempfile.TemporaryDirectory(prefix="cachefs-bench-") as folder:
        source = Path(folder) / "files"
        count = lab.size(FROZEN, 2000)
        make(source, count)
        frozen_complete(lab, result, source, count)
        frozen_cold(lab, result, source, count)


# ---- readers -------------------------------------------------------------------------------------


def rates(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(8000, 500))
    turns = 2 if lab.quick else 9
    with lab.ours(data.url, *FLAGS, url=lab.origin.direct_url) as mount:
        freeze(lab, mount.path)
        lab.read(mount, data, readers=FEW)  # compares every byte
        reader = Reader(lab.root)
        lists = {
            COVER: reader.list_of(COVER, [mount.path / name for name in data.names]),
            NATIVE: reader.list_of(NATIVE, own_names(mount, data)),
        }
        passes: Passes = defaultdict(list)
        for turn, work in product(range(turns), WORKS):
            for who in (COVER, NATIVE) if turn % 2 else (NATIVE, COVER):
                passes[work.name, who].append(one_pass(lab, reader, lists[who], work))
        for turn, drops in product(range(turns), (False, True)):
            for who in (COVER, NATIVE) if turn % 2 else (NATIVE, COVER):
                passes[find_name(drops), who].append(walk(lab, mount, who, drops, len(data.names)))
    show(result, passes, len(data.names), turns)


def own_names(mount: Mounted, data: Dataset) -> list[Path]:
    """Returns the cache files that the cover shows, in the order of the data's names."""
    by_inode = {
        path.stat().st_ino: path for path in (mount.cache / "files").rglob("*") if path.is_file()
    }
    return [by_inode[(mount.path / name).stat().st_ino] for name in data.names]


def one_pass(lab: Lab, reader: Reader, names: Path, work: Work) -> Figures:
    if work.drops:
        lab.drop_caches()
    done = reader.read(names, work.processes, work.seconds, work.what)
    if done.errors:
        raise BenchFailed(f"{done.errors} errors: {work.name}")
    return Figures(done.files_per_s, done.cpu_s / done.files * 1e6)


def find_name(drops: bool) -> str:
    return f"find + stat, names {'dropped' if drops else 'kept'}"


def walk(lab: Lab, mount: Mounted, who: str, drops: bool, count: int) -> Figures:
    """Measures `find` with a stat of each."""
    top = mount.path if who == COVER else mount.cache / "files"
    if drops:
        lab.drop_caches()
    began_s, before_s = time.monotonic(), cpu_s()
    done = subprocess.run(
        ["find", str(top), "-type", "f", "-printf", "%s\n"],
        check=True,
        capture_output=True,
        timeout=COMMAND_LIMIT_S,
    )
    took_s = time.monotonic() - began_s
    if (found := done.stdout.count(b"\n")) != count:
        raise BenchFailed(f"find saw {found} of {count} files below {top}")
    return Figures(count / took_s, (cpu_s() - before_s) / count * 1e6)


def show(result: Result, passes: Passes, count: int, turns: int) -> None:
    title = (
        f"{count:,} files of 110 KiB, medians of {turns}; ratios to native within a turn. On a "
        "busy machine the readers' CPU time says more than the rates"
    )
    columns = ("what", "files/s", "native", "ratio", "CPU us per file", "native", "ratio")
    table = result.table(title, *columns)
    limits = {work.name: work.limit for work in WORKS}
    for name in dict.fromkeys(name for name, _ in passes):
        ours, native = passes[name, COVER], passes[name, NATIVE]
        pairs = [*zip(ours, native, strict=True)]
        rate = middle(one.files_per_s / other.files_per_s for one, other in pairs)
        cpu = middle(other.cpu_us / one.cpu_us for one, other in pairs)
        table.add(
            name,
            middle(one.files_per_s for one in ours),
            middle(one.files_per_s for one in native),
            rate,
            middle(one.cpu_us for one in ours),
            middle(one.cpu_us for one in native),
            cpu,
        )
        result.bar(f"{name}, of native", rate, limits.get(name, 0.9), "x", at_least=True)


# ---- freezing ------------------------------------------------------------------------------------


def make(source: Path, count: int) -> None:
    for number in range(count):
        folder = source / f"d{number // PER_FOLDER:04d}"
        if number % PER_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"f{number:07d}.jpg").write_bytes(b"%d" % number)


@contextlib.contextmanager
def mounted(lab: Lab, source: Path, count: int) -> Iterator[Mounted]:
    size = f"{max(1, count * 8 >> 20)}GiB"  # 8 KiB each
    with lab.ours(f"file://{source}", *FLAGS, cache_size=size) as mount:
        yield mount


def frozen_complete(lab: Lab, result: Result, source: Path, count: int) -> None:
    """Freezes what is complete, and thaws it."""
    title = f"{count:,} complete files"
    table = result.table(title, "what", "s", "CPU us per file", "kernel memory, bytes per file")
    with mounted(lab, source, count) as mount:
        lab.cachefs.run("load", mount.path, "--wait", limit_s=COMMAND_LIMIT_S)
        with kernel_bytes_of(mount.pids) as kernel_bytes, sampled(lab, mount) as samples:
            frozen = step(mount, kernel_bytes, lambda: freeze(lab, mount.path))
            check(mount, count)
            thawed = step(mount, kernel_bytes, lambda: thaw(lab, mount.path))
            released = step(mount, kernel_bytes, lambda: until_released(lab, mount.path))
        how = kernel_bytes.how
    steps = {
        "freeze": frozen,
        "thaw, until it returns": thawed,
        "then, until all are back": released,
    }
    for name, done in steps.items():
        table.add(name, done.wall_s, done.cpu_s / count * 1e6, done.kernel_bytes / count)
    result.notes.append(f"Kernel memory: {how}.")
    result.bar("freezing, CPU per file", frozen.cpu_s / count * 1e6, CPU_LIMIT_US, "us")
    kernel = frozen.kernel_bytes / count
    result.bar("freezing, kernel memory per file", kernel, KERNEL_LIMIT_BYTES, "bytes")
    result.bar("thaw", thawed.wall_s, THAW_LIMIT_S, "s")
    server = samples["server"]
    growth = (max(server) - server[0]) / MIB
    result.bar("growth of the server's RssAnon", growth, GROWTH_LIMIT_MIB, "MiB")


def frozen_cold(lab: Lab, result: Result, source: Path, count: int) -> None:
    """Freezes what is not cached yet: it is loaded."""
    with mounted(lab, source, count) as mount:
        freeze(lab, mount.path)
        last_byte_s = (mount.cache / "pub").stat().st_mtime  # each file is published there
        (row,) = lab.cachefs.status(mount.path)["views"]["rows"]
        check(mount, count)
    took_s = row["since_s"] - last_byte_s
    result.bar("covered after the last byte", took_s, COVERED_LIMIT_S, "s")


class Step(NamedTuple):
    wall_s: float
    cpu_s: float
    kernel_bytes: int


def step(mount: Mounted, kernel_bytes: Callable[[], int], work: Callable[[], None]) -> Step:
    before, before_s, began_s = kernel_bytes(), machine.cpu_s(mount.pids), time.monotonic()
    work()
    wall_s = time.monotonic() - began_s
    return Step(wall_s, machine.cpu_s(mount.pids) - before_s, kernel_bytes() - before)


def freeze(lab: Lab, path: Path) -> None:
    """Raises BenchFailed if it is not covered in the end."""
    document = json.loads(
        lab.cachefs.run("freeze", path, "--wait", "--json", limit_s=COMMAND_LIMIT_S)
    )
    if document["state"] != "covered":
        raise BenchFailed(f"not covered: {document}")


def thaw(lab: Lab, path: Path) -> None:
    lab.cachefs.run("thaw", path, limit_s=COMMAND_LIMIT_S)


def until_released(lab: Lab, path: Path) -> None:
    """Waits until the tree is removed."""
    wait_until(
        lambda: not lab.cachefs.status(path)["views"]["rows"],
        "the end of the removal",
        COMMAND_LIMIT_S,
    )


def check(mount: Mounted, count: int) -> None:
    """Raises BenchFailed if some of the files are wrong."""
    for number in range(0, count, max(1, count // 1000)):
        path = mount.path / f"d{number // PER_FOLDER:04d}" / f"f{number:07d}.jpg"
        if path.read_bytes() != b"%d" % number:
            raise BenchFailed(f"{path} has other bytes")


if __name__ == "__main__":
    main(run)
