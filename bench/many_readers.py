"""1,000 readers, each of its own large file, beside a full cache: no error, no wrong byte, and no
read over 5 s, at an origin that is not shaped.

The cache of 4 GiB is first filled with another file. Then it admits nothing more, and every read
bypasses it. The readers are threads of eight processes and read 128 KiB at a time; every byte is
compared. The longest read is the wait of the last one in the queue.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import msgspec

from bench import machine
from bench.datasets import Dataset
from bench.harness import Lab, main
from bench.mounts import BenchFailed
from bench.origin import REPOSITORY
from bench.report import Result
from bench.timed_readers import Spec, Timed

READERS = 1000
FILE_MIB = 32
CACHE_MIB = 4096
PROCESSES = 8
DURATION_S = 30.0
END_LIMIT_S = 120.0  # after the readers' time: a last read may be in flight
LONGEST_S = 5.0


def run(lab: Lab, result: Result) -> None:
    readers, cache_mib = lab.size(READERS, 240), lab.size(CACHE_MIB, 512)
    data = lab.datasets.numbered(readers, FILE_MIB, cache_mib)
    with lab.light() as origin:
        flags = ("--transport", "kernel", "--sync-interval", "1h")
        size = f"{cache_mib}MiB"
        with lab.ours(data.url, *flags, url=origin.url, cache_size=size) as mount:
            fill(mount.path / "filler/data.bin")
            before_s, before = machine.cpu_s(mount.pids), origin.counters()["object_bytes"]
            done = read_all(lab, mount.path, data, readers)
            cpu_s = machine.cpu_s(mount.pids) - before_s
            fetched_bytes = origin.counters()["object_bytes"] - before
            tier = lab.cachefs.status(mount.path)["cache"]["tiers"][0]
    show(result, done, tier, readers, cpu_s)
    per_byte = fetched_bytes / max(1, done.bytes)
    result.notes.append(f"The origin sent {per_byte:.2f} bytes for each byte that was read.")
    result.bar("reads that failed", len(done.errors), 0)
    result.bar("reads with a wrong byte", len(done.wrong), 0)
    result.bar(f"longest read of {readers:,} readers", max(done.read_s), LONGEST_S, "s")


def fill(path: Path) -> None:
    """Reads until the cache admits nothing more: the file is larger than the cache."""
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass


def read_all(lab: Lab, root: Path, data: Dataset, readers: int) -> Timed:
    """Runs all readers. Raises BenchFailed if they do not end in time."""
    names = [name for name in data.names if not name.startswith("filler")][:readers]
    files = [(str(root / name), number) for number, name in enumerate(names)]
    running = []
    for part in range(PROCESSES):
        path = lab.root / f"timed-{part}.json"
        spec = Spec(files[part::PROCESSES], 128 << 10, lab.size(int(DURATION_S), 10))
        path.write_bytes(msgspec.json.encode(spec))
        command = [sys.executable, "-m", "bench.timed_readers", str(path)]
        running.append(subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE))
    total = Timed()
    try:
        for process in running:
            out, _ = process.communicate(timeout=DURATION_S + END_LIMIT_S)
            done = msgspec.json.decode(out, type=Timed)
            total.bytes += done.bytes
            for field in ("read_s", "open_s", "wrong", "errors"):
                getattr(total, field).extend(getattr(done, field))
    except (subprocess.TimeoutExpired, msgspec.DecodeError) as err:
        raise BenchFailed(f"the readers did not end: {err}") from err
    finally:
        for process in running:
            process.kill()
            process.wait()
    return total


def show(result: Result, done: Timed, tier: dict[str, object], readers: int, cpu_s: float) -> None:
    columns = (
        "readers",
        "reads",
        "MiB",
        "median s",
        "p99 s",
        "longest s",
        "longest open s",
        "CPU s/GB",
    )
    table = result.table("128 KiB at a time", *columns)
    p99 = statistics.quantiles(done.read_s, n=100)[98]
    opens = max(done.open_s, default=0.0)
    median = statistics.median(done.read_s)
    table.add(
        readers,
        len(done.read_s),
        done.bytes >> 20,
        median,
        p99,
        max(done.read_s),
        opens,
        cpu_s / (done.bytes / 1e9),
    )
    result.notes.append(f"Scratch at the end: {tier['scratch_bytes']} B in {tier['segments']}.")
    result.notes.extend(sorted(set(done.errors))[:5])


if __name__ == "__main__":
    main(run)
