"""The first sync of 1,000,000 objects runs at >= 0.8 x the keys/s of the fastest Python lister of
the same store; a second one in which nothing changed writes nothing, in <= 1.2 x the listing's
time.

The store is `bench/listing_origin.py`, which computes its names and answers each page after 20 ms,
as stores in the same region do; rows without latency show the CPU alone. The objects are in one
directory, or in 1,000. Each pass is a process of its own, and the passes take turns. The second
sync is the walk of a background sync without its pace; `alone` is the same listing by the same
connector, compared with nothing. Writes are rows of the master's store, a durable LMDB.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.harness import Lab, main, middle
from bench.listing_origin import PER_FOLDER, folder_name
from bench.mounts import BenchFailed
from bench.origin import REPOSITORY
from bench.report import Result
from cachefs.core.model import UfsSpec
from cachefs.launcher import gc_tuning
from connectors.base import Page
from connectors.compose import open_connector
from connectors.meter import Meter
from master.manual_sync.report import DONE, Report
from master.manual_sync.run import Run
from master.namespace import Master
from master.store import lmdb_store

NAMES: Final = 1_000_000
LATENCY_S: Final = 0.02
FIRST_X: Final = 0.8
SECOND_X: Final = 1.2
LOOK_S: Final = 0.02
PASS_LIMIT_S: Final = 900.0
LISTERS: Final = ("obstore", "boto3")
Figures = dict[str, float]


def run(lab: Lab, result: Result) -> None:
    count = lab.size(NAMES, 50_000)
    for latency_s in (LATENCY_S, 0.0):
        with origin(count, latency_s) as url:
            for bucket in ("flat", "tree"):
                one(lab, result, url, bucket, count, latency_s)


def one(
    lab: Lab, result: Result, url: str, bucket: str, count: int, latency_s: float
) -> None:  # fmt: skip
    """Measures one shape of the names. The bars are those with a latency."""
    passes: dict[str, list[Figures]] = {name: [] for name in (*LISTERS, "master")}
    for number in range(lab.runs):
        for name, found in passes.items():
            store = lab.root / f"first-sync-{bucket}-{latency_s}-{number}"
            found.append(measured(name, url, bucket, count, store))
    shape = f"{count:,} objects, {bucket}, {latency_s * 1000:.0f} ms"
    table = result.table(shape, "what", "s", "keys/s", "CPU us per key", "rows written")

    def row(title: str, name: str, prefix: str = "") -> float:
        found = passes[name]
        wall_s, cpu_s = (middle(one[prefix + key] for one in found) for key in ("wall_s", "cpu_s"))
        written = max(one.get(f"{prefix}written", 0.0) for one in found)
        table.add(title, wall_s, count / wall_s, cpu_s / count * 1e6, int(written))
        return wall_s

    lister_s = min(row(name, name) for name in LISTERS)
    first_s = row("master, first sync", "master", "first_")
    alone_s = row("its connector's listing alone", "master", "alone_")
    second_s = row("master, second sync in the background", "master", "second_")
    row("master, second sync on demand", "master", "demand_")
    if latency_s:
        claim = f"first sync, {bucket}, of the fastest lister"
        result.bar(claim, lister_s / first_s, FIRST_X, "x", at_least=True)
        result.bar(f"second sync, {bucket}, of the listing", second_s / alone_s, SECOND_X, "x")
        written = max(one["second_written"] for one in passes["master"])
        result.bar(f"rows that a second sync writes, {bucket}", written, 0.0, "rows")


@contextlib.contextmanager
def origin(count: int, latency_s: float) -> Iterator[str]:
    command = [sys.executable, "-m", "bench.listing_origin", "--names", str(count)]
    command += ["--latency", str(latency_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["endpoint_url"]
        process.stdin.close()


def measured(name: str, url: str, bucket: str, count: int, store: Path) -> Figures:
    command = [sys.executable, "-m", "bench.first_sync", "child", name, url, bucket]
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    done = subprocess.run(
        [*command, str(count), str(store)],
        cwd=REPOSITORY,
        env={**os.environ, **keys, "AWS_REGION": "us-east-1"},
        check=True,
        stdout=subprocess.PIPE,
        timeout=PASS_LIMIT_S,
    )
    found: Figures = json.loads(done.stdout)
    return found


# ---- in a process of its own ---------------------------------------------------------------------


def child(name: str, url: str, bucket: str, count: int, store: Path) -> Figures:
    """Returns the figures of one pass. Raises BenchFailed if a key is missing."""
    gc_tuning.settle()
    if name == "master":
        return asyncio.run(master_pass(url, bucket, count, store))
    lister = obstore_keys if name == "obstore" else boto3_keys
    found, figures = timed(lambda: lister(url, bucket))
    check(found, count)
    return figures


def check(found: int, count: int) -> None:
    if found != count:
        raise BenchFailed(f"{found:,} of {count:,} keys were listed")


def timed(work: Callable[[], int], prefix: str = "") -> tuple[int, Figures]:
    cpu_s, began_s = time.process_time(), time.monotonic()
    found = work()
    wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    return found, {f"{prefix}wall_s": wall_s, f"{prefix}cpu_s": cpu_s}


def obstore_keys(url: str, bucket: str) -> int:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        bucket,
        endpoint=url,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return sum(len(chunk) for chunk in obstore.list(store, chunk_size=PER_FOLDER))


def boto3_keys(url: str, bucket: str) -> int:
    import boto3

    pages = boto3.client("s3", endpoint_url=url).get_paginator("list_objects_v2")
    return sum(len(page["Contents"]) for page in pages.paginate(Bucket=bucket))


async def master_pass(url: str, bucket: str, count: int, store: Path) -> Figures:
    source = UfsSpec(f"s3://{bucket}", {"endpoint_url": url})
    connector = open_connector(source, deadline_s=60.0, meter=Meter())
    written = rows_written()
    master = Master.open(store, source, connector, 3600.0)
    names = count + (count // PER_FOLDER if bucket == "tree" else 0)
    figures: Figures = {}

    async def phase(prefix: str, work: Callable[[], Any], expected: int) -> None:
        cpu_s, began_s, before = time.process_time(), time.monotonic(), written[0]
        check(await work(), expected)
        figures[f"{prefix}wall_s"] = time.monotonic() - began_s
        figures[f"{prefix}cpu_s"] = time.process_time() - cpu_s
        figures[f"{prefix}written"] = written[0] - before

    async def alone() -> int:
        return await asyncio.to_thread(listed_alone, connector, bucket, count)

    try:
        await phase("first_", lambda: on_demand(master), names)
        await phase("alone_", alone, names)
        await phase("second_", lambda: in_background(master), names)
        await phase("demand_", lambda: on_demand(master), names)
    finally:
        await master.close()
        connector.close()
    return figures


async def on_demand(master: Master) -> int:
    sync = (await master.start_sync(b"", recursive=True, dry_run=False)).sync
    while sync.state == "running":
        await asyncio.sleep(LOOK_S)
        sync = (await master.sync(sync.sync, 0, stop=False)).sync
    if sync.state != DONE:
        raise BenchFailed(f"the sync ended as {sync.state}: {sync.message}")
    return sync.names


class NoPace:
    """Counts and waits for nothing."""

    def page(self, page: Page) -> None: ...

    def charge(self, names: int) -> None: ...


async def in_background(master: Master) -> int:
    """Runs the walk of a background sync as fast as it goes."""
    report = Report(0, b"", 0.0, lambda size: False, recursive=True, dry_run=False)
    lock, turns = threading.Lock(), asyncio.Semaphore(1)
    run = Run(report, master.store, master._tree, master._sync, turns, lock, NoPace())
    await run.run()
    report.end(DONE, 0.0, 0)
    shown = report.shown(0.0)
    if shown.state != DONE:
        raise BenchFailed(f"the walk ended as {shown.state}: {shown.message}")
    return shown.names


def listed_alone(connector: Any, bucket: str, count: int) -> int:
    """Returns how many entries the same listings have, one after the other."""
    folders = [folder_name(n).encode() for n in range(-(-count // PER_FOLDER))]
    paths = [b"", *(folders if bucket == "tree" else [])]
    return sum(len(page.entries) for path in paths for page in connector.list_dir(path))


def rows_written() -> list[int]:
    """Counts the rows that stores of this process put or delete from now on."""
    found = [0]
    put, delete = lmdb_store.LmdbWriter.put, lmdb_store.LmdbWriter.delete

    def counting_put(writer: Any, table: Any, items: Any) -> None:
        rows = [*items]
        found[0] += len(rows)
        put(writer, table, rows)

    def counting_delete(writer: Any, table: Any, keys: Any) -> None:
        rows = [*keys]
        found[0] += len(rows)
        delete(writer, table, rows)

    for name, counting in (("put", counting_put), ("delete", counting_delete)):
        setattr(lmdb_store.LmdbWriter, name, counting)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        which, at, where, number, directory = sys.argv[2:]
        print(json.dumps(child(which, at, where, int(number), Path(directory))))
    else:
        main(run)
