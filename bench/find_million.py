"""`find` with a stat of each of 1,000,000 files, kernel caches dropped: >= 100,000 entries/s;
RssAnon of each process <= 150 MiB + 100 bytes per dentry.

The source is `file://` with empty files in 1,000 folders. The real `find` prints every file's size
and name, which are compared. rclone's mount2 over a tenth of the folders (it takes a kilobyte of
memory per file) and native tmpfs are measured beside.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench import machine
from bench.datasets import MIB
from bench.harness import Lab, main, middle
from bench.memory import sampled
from bench.mounts import BenchFailed, Mounted
from bench.report import Result

FOLDERS, PER_FOLDER = 1000, 1000
BAR_PER_S = 100_000
MEMORY_MIB, DENTRY_BYTES = 150, 100
FIND_LIMIT_S = 300.0


def run(lab: Lab, result: Result) -> None:
    folders = lab.size(FOLDERS, 20)
    source = lab.root / "million"
    make(source, folders)
    flags = ("--transport", "kernel", "--sync-interval", "1h")
    walks: list[tuple[float, float]] = []
    with lab.ours(f"file://{source}", *flags) as mount:
        lab.drop_caches()
        cold_s, _ = find(mount, source, folders)
        with sampled(lab, mount) as samples:
            for _ in range(lab.runs):
                lab.drop_caches()
                walks.append(find(mount, source, folders))
        kept_s, _ = find(mount, source, folders)
    native_s, _ = find(Mounted("native", source, []), source, folders)
    tenth = max(1, folders // 10)
    with lab.rclone_of(source) as peer:
        find(peer, source, tenth)
        lab.drop_caches()
        peer_s, peer_cpu_s = find(peer, source, tenth)
    count = folders * (PER_FOLDER + 1)
    table = result.table(
        f"{count:,} entries", "what", "s", "entries/s", "client's CPU us per entry"
    )
    took_s, cpu_s = (middle(column) for column in zip(*walks, strict=True))
    table.add("cold", cold_s, count / cold_s, None)
    table.add("warm, kernel caches dropped", took_s, count / took_s, cpu_s / count * 1e6)
    table.add("warm, kernel caches kept", kept_s, count / kept_s, None)
    table.add("native tmpfs", native_s, count / native_s, None)
    part = tenth * (PER_FOLDER + 1)
    cells = (part / peer_s, peer_cpu_s / part * 1e6)
    table.add(f"rclone mount2, {part:,} of them, caches dropped", peer_s, *cells)
    claim = "find + stat, kernel caches dropped"
    result.bar(claim, count / took_s, BAR_PER_S, "entries/s", at_least=True)
    judge_memory(result, samples, count)


def judge_memory(result: Result, samples: dict[str, list[int]], dentries: int) -> None:
    limit_mib = MEMORY_MIB + DENTRY_BYTES * dentries / MIB
    table = result.table(
        "RssAnon over the walks, MiB", "role", "at the start", "most", "at the end"
    )
    for role, values in samples.items():
        start, most, end = (value / MIB for value in (values[0], max(values), values[-1]))
        table.add(role, start, most, end)
        result.bar(f"RssAnon of the {role}", most, limit_mib, "MiB")


def make(source: Path, folders: int) -> None:
    for number in range(folders):
        folder = source / folder_name(number)
        folder.mkdir(parents=True)
        for index in range(PER_FOLDER):
            (folder / f"f{index:06d}.jpg").touch()


def folder_name(number: int) -> str:
    return f"d{number:04d}"


def find(mount: Mounted, source: Path, folders: int) -> tuple[float, float]:
    """Returns the seconds of one walk with a stat each over the first `folders`, and the CPU
    seconds of the file system's processes. Raises BenchFailed for a wrong name or size."""
    names = [folder_name(number) for number in range(folders)]
    before_s, started = machine.cpu_s(mount.pids), time.monotonic()
    done = subprocess.run(
        ["find", *names, "-printf", "%y %s %p\n"],
        cwd=mount.path,
        check=True,
        capture_output=True,
        timeout=FIND_LIMIT_S,
    )
    took_s = time.monotonic() - started
    cpu_s = machine.cpu_s(mount.pids) - before_s
    files = {line[4:] for line in done.stdout.split(b"\n") if line.startswith(b"f 0 ")}
    expected = {
        f"{name}/f{index:06d}.jpg".encode() for name in names for index in range(PER_FOLDER)
    }
    if files != expected:
        raise BenchFailed(f"find saw {len(files)} of {len(expected)} empty files")
    return took_s, cpu_s


if __name__ == "__main__":
    main(run)
