"""Every byte is fetched from the origin once: body bytes = bytes of the files. With K connections
cut in mid-body, at most K pages of 1 MiB more.

The proxy in front of the origin counts the body bytes that it sends. Over TLS and over plain HTTP.
"""

from __future__ import annotations

from bench.datasets import MIB, Dataset
from bench.harness import Lab, main
from bench.origin import SCHEMES, Origin
from bench.report import Result, Table

CUTS = 4
READERS = 16


def run(lab: Lab, result: Result) -> None:
    columns = ("reading", "file bytes", "body bytes", "ratio", "GETs", "cut by us", "s")
    for scheme, over in SCHEMES.items():
        table = result.table(f"Bytes from the origin over {over}", *columns)
        all_kinds(lab, result, table, lab.over(scheme), over)


def all_kinds(lab: Lab, result: Result, table: Table, origin: Origin, over: str) -> None:
    big = lab.datasets.big(lab.size(512, 64))
    small = lab.datasets.small(lab.size(2000, 300))
    excess = once(lab, origin, table, "sequential", big, readers=1)
    result.bar(f"{over}, sequential: bytes beyond the file's", excess, 0, "B")
    excess = once(lab, origin, table, "16 readers of one file", big, readers=READERS, shared=True)
    claim = f"{over}, 16 parallel readers of one file: bytes beyond the file's"
    result.bar(claim, excess, 0, "B")
    excess = once(lab, origin, table, "all small files, 16 readers", small, readers=READERS)
    result.bar(f"{over}, full small-file pass: bytes beyond the files'", excess, 0, "B")
    origin.script(
        fault={"type": "cut_body", "after_bytes": 300_000},
        method="GET",
        key="data",
        nth=3,
        times=CUTS,
    )
    excess = once(lab, origin, table, f"sequential, {CUTS} connections cut", big, readers=1)
    claim = f"{over}, {CUTS} connections cut: bytes beyond the file's"
    result.bar(claim, excess, CUTS * MIB, "B")
    faults = origin.counters()["faults"]
    result.bar(f"{over}, connections that were cut", faults, CUTS, at_least=True)


def once(
    lab: Lab,
    origin: Origin,
    table: Table,
    title: str,
    data: Dataset,
    *,
    readers: int,
    shared: bool = False,
) -> int:
    """Reads all of `data` through a fresh mount, and returns the bytes fetched beyond its size.
    Every byte is verified, so none can be missing."""
    with lab.ours(data.url, url=origin.proxy_url) as mount:
        lab.drop_caches()
        before = origin.counters()
        done = lab.read(mount, data, readers=readers, shared=shared)
        after = origin.counters()
    body = after["object_bytes"] - before["object_bytes"]
    gets = after["requests"]["GET"] - before["requests"].get("GET", 0)
    aborted = after["aborted_by_client"] - before["aborted_by_client"]
    ratio = body / data.size_bytes
    table.add(title, data.size_bytes, body, f"{ratio:.4f}", gets, aborted, done.wall_s)
    return int(body - data.size_bytes)


if __name__ == "__main__":
    main(run)
