"""Random reads of a cold 10 GiB file fetch <= 1.1 x the distinct pages (1 MiB) that they touch from
the origin.

One reader reads 4 KiB at a time, eight read 128 KiB, neither aligned nor announced to the kernel.
The file is sparse at the origin, but every touched page has unique bytes there, and each read is
compared. The light origin counts the body bytes that it sends. rclone's mount2 does the same reads.
Over TLS and over plain HTTP.
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
DURATION_S = 60.0  # longer than any pass
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
    """Measures the same reads through CacheFS and through rclone."""
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
    """Writes unique bytes into pages of the file; its etag does not depend on them."""
    noise = random.Random(3).randbytes(2 * MIB)
    file = os.open(data.folder / data.names[0], os.O_WRONLY)
    for page in pages:
        start = page * 61 % MIB
        os.pwrite(file, STAMP.pack(page) + noise[start : start + MIB - STAMP.size], page * MIB)
    os.close(file)


def counted(
    lab: Lab, mount: Mounted, origin: Shaped, data: Dataset, how: dict[str, object]
) -> tuple[Pass, int, int]:
    """Returns one pass, and the body bytes and GETs that it caused. Every read is compared."""
    lab.drop_caches()
    before = origin.counters()
    done = lab.read(mount, data, what="random", duration_s=DURATION_S, **how)
    after = origin.counters()
    sent, gets = (after[key] - before[key] for key in ("object_bytes", "GET"))
    return done, sent, gets


if __name__ == "__main__":
    main(run)
