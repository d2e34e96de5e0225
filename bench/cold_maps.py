"""A cold map that is copied by slices of 8 MiB comes at >= 0.9 x the rate of `read()`, and so does
a file that is read from its end to its beginning.

The C library copies a large slice downwards, from its end to its beginning, where the copy has the
higher address: so Python's slices of a map do, by chance. Here the copy is mapped first, and has
it. The origin is shaped to 300 MB/s and 15 ms. The contenders are fresh mounts, by turns.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.harness import Lab, main
from bench.mounts import BenchFailed
from bench.report import Result

RATE_BYTES_PER_S: Final = 300e6
LATENCY_S: Final = 0.015
SLICE: Final = 8 << 20
BLOCK: Final = 1 << 20
AT_LEAST: Final = 0.9
READ, MAP, DOWN = "read()", "a map, by slices", "read(), from the end"

Scan = Callable[[int, int], int]


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.big(lab.size(512, 128))
    scans: dict[str, Scan] = {READ: by_read, MAP: by_slices, DOWN: from_the_end}
    seconds: dict[str, list[float]] = {name: [] for name in scans}
    fetched: dict[str, float] = {}
    with lab.light() as origin:
        origin.shape(RATE_BYTES_PER_S, LATENCY_S)
        for _ in range(lab.runs):
            for name, scan in scans.items():
                with lab.ours(data.url, "--transport", "kernel", url=origin.url) as mount:
                    before = origin.counters()["object_bytes"]
                    seconds[name].append(timed(mount.path / data.names[0], scan))
                    sent = origin.counters()["object_bytes"] - before
                    fetched[name] = sent / data.size_bytes
    table = result.table(
        f"{data.size_bytes / 1e6:,.0f} MB, cold",
        "how",
        "MB/s",
        "of read()",
        "bytes of the origin, x",
    )
    middle = {name: sorted(found)[len(found) // 2] for name, found in seconds.items()}
    for name, each in middle.items():
        table.add(name, data.size_bytes / each / 1e6, middle[READ] / each, fetched[name])
    for name in (MAP, DOWN):
        result.bar(f"{name}, of read()", middle[READ] / middle[name], AT_LEAST, "x", at_least=True)


def timed(path: Path, scan: Scan) -> float:
    """Returns the seconds of one pass over a whole file. Raises BenchFailed if it was shorter."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        began_s = time.monotonic()
        if scan(fd, size) != size:
            raise BenchFailed(f"{path} was not read as a whole")
        return time.monotonic() - began_s
    finally:
        os.close(fd)


def by_read(fd: int, size: int) -> int:
    block, done = bytearray(BLOCK), 0
    while done < size:
        done += os.preadv(fd, [block], done)
    return done


def from_the_end(fd: int, size: int) -> int:
    block = bytearray(BLOCK)
    return sum(os.preadv(fd, [block], at) for at in range(size - BLOCK, -1, -BLOCK))


def by_slices(fd: int, size: int) -> int:
    copied = mmap.mmap(-1, SLICE)
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
        for at in range(0, size, SLICE):
            piece = view[at : at + SLICE]
            memoryview(copied)[: len(piece)] = piece
            piece.release()
    return size


if __name__ == "__main__":
    main(run)
