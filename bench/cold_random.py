"""Random reads of a cold 10 GiB file bring <= 1.1 x the distinct pages (1 MiB) that they touch from
the origin.

4 KiB at a time by one reader, 128 KiB by eight, neither aligned nor announced to the kernel. The
file is sparse at the origin, but every page that is touched holds bytes of its own there, and each
read is compared. The light origin counts the body bytes that it sends; rclone's mount2 stands
beside, with the same reads. Over TLS and over plain HTTP.
"""

from __future__ import annotations

import os
import random

from bench.datasets import MIB, STAMP, Dataset
from bench.harness import Lab, Pass, main
from bench.mounts import Mounted
from bench.origin import SCHEMES, Shaped
from bench.report import Result, Table

BAR = 1.1
LATENCY_S = 0.005
DURATION_S = 60.0  # more than it takes
WORK = {"4 KiB, 1 reader": (4 << 10, 1), "128 KiB, 8 readers": (128 << 10, 8)}


def run(lab: Lab, result: Result) -> None:
    columns = (
        "reads",
        "who",
        "over",
        "count",
        "distinct pages",
        "origin's bytes, of these",
        "reads/s",
        "GETs",
    )
    table = result.table("One 10 GiB file, cold", *columns)
    for scheme in SCHEMES:
        with lab.light(scheme) as origin:
            origin.shape(None, LATENCY_S)
            for seed, work in enumerate(WORK):
                one_kind(lab, result, table, origin, scheme, work, seed)


def one_kind(
    lab: Lab, result: Result, table: Table, origin: Shaped, scheme: str, work: str, seed: int
) -> None:
    """The same reads by ours and by rclone."""
    (read_bytes, readers), over = WORK[work], SCHEMES[scheme]
    data = lab.datasets.sparse(lab.size(10 << 10, 2 << 10))
    places = plan(data, read_bytes, lab.size(400, 100), seed)
    pages = {page for at in places for page in touched(at, read_bytes)}
    fill(data, pages)
    flags = ("--transport", "kernel")
    for who, mounting in {
        "cachefs": lab.ours(data.url, *flags, url=origin.url, cache_size="11GiB"),
        "rclone mount2": lab.rclone(data, origin.url),
    }.items():
        with mounting as mount:
            how = {"places": places, "read_bytes": read_bytes, "readers": readers}
            done, body, gets = counted(lab, mount, origin, data, how)
        ratio = body / (len(pages) * MIB)
        table.add(work, who, over, done.files, len(pages), ratio, done.files_per_s, gets)
        if who == "cachefs":
            result.bar(f"origin's bytes of distinct pages, {work}, {over}", ratio, BAR, "x")


def plan(data: Dataset, read_bytes: int, count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(data.size_bytes - read_bytes) for _ in range(count)]


def touched(at: int, length: int) -> range:
    return range(at // MIB, (at + length - 1) // MIB + 1)


def fill(data: Dataset, pages: set[int]) -> None:
    """Gives pages bytes of their own; the etag says nothing of the content and stays."""
    noise = random.Random(3).randbytes(2 * MIB)
    file = os.open(data.folder / data.names[0], os.O_WRONLY)
    for page in pages:
        start = page * 61 % MIB
        os.pwrite(file, STAMP.pack(page) + noise[start : start + MIB - STAMP.size], page * MIB)
    os.close(file)


def counted(
    lab: Lab, mount: Mounted, origin: Shaped, data: Dataset, how: dict[str, object]
) -> tuple[Pass, int, int]:
    """One pass; the origin's body bytes and GETs meanwhile. Every read was compared."""
    lab.drop_caches()
    before = origin.counters()
    done = lab.read(mount, data, what="random", duration_s=DURATION_S, **how)
    after = origin.counters()
    sent, asked = (after[key] - before[key] for key in ("object_bytes", "GET"))
    return done, sent, asked


if __name__ == "__main__":
    main(run)
