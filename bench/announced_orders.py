"""A shuffled cold epoch of files of 110 KiB whose order is announced, origin with 20 ms of latency,
over TLS: 4 readers get >= 0.8 x the rate of bare libcurl with 64 requests in flight, 1 reader >= 15
x the rate without, and every byte is fetched once. With a cache limited to 40 % of the data, epochs
2 to 4 fetch <= 1.02 x the other bytes, at >= 4 x the rate without. Any user announces 10M
inode numbers in <= 1 s, for <= 16 bytes each in the worker; a function takes <= 1 ms.

The clock of an announced epoch starts before the announcement. The names are listed before it, as a
manifest is. rclone and others have no way to announce: libcurl, which knows all names, is the peer.
"""

from __future__ import annotations

import array
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import machine
from bench.datasets import SMALL_BYTES, Dataset
from bench.harness import Lab, Pass, main, median
from bench.mounts import BenchFailed, Mounted
from bench.origin import TLS, Shaped
from bench.report import Result
from cachefs.cli.session import find_target
from cachefs.client.blocking import BlockingClient
from cachefs.core import messages as m
from cachefs.core.manifest_format import InoTableHeader
from cachefs.core.orders import Order, Share
from cachefs.launcher.state import StateHome

LATENCY_S = 0.02
IN_FLIGHT = 64
SHARE = 0.4
EPOCHS = 4
READERS = 4
ENTRIES = 10_000_000
NOBODY = 65534
CURL, WITHOUT, WITH = "bare libcurl", "without an order", "announced"

ANNOUNCE = """
import array, fcntl, os, random, sys, time
sys.path.insert(0, sys.argv[1])
from cachefs.core.order_ioctl import PIECE, pieces
directory = os.open(sys.argv[2], os.O_RDONLY)
inos = array.array("Q", range(1000, 1000 + int(sys.argv[3])))
os.setgroups([])
os.setresuid(65534, 65534, 65534)
started = time.perf_counter()
for piece in pieces("long", inos):
    fcntl.ioctl(directory, PIECE, piece)
print(time.perf_counter() - started)
"""


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(4000, 600))
    with lab.light(TLS) as origin:
        origin.shape(None, LATENCY_S)
        whole_epochs(lab, result, data, origin)
        small_cache(lab, result, data, origin)
        announcements(lab, result, data, origin)


# ---- the whole data fits ----


def whole_epochs(lab: Lab, result: Result, data: Dataset, origin: Shaped) -> None:
    passes: dict[tuple[str, int], list[Pass]] = {}
    beyond_bytes = 0
    few = lab.datasets.small(lab.size(600, 200))  # one reader without an order: 40 files/s
    for _ in range(lab.runs):
        passes.setdefault((CURL, IN_FLIGHT), []).append(
            lab.client("curl_files", data, origin.url, IN_FLIGHT)
        )
        for who, readers, some in (
            (WITH, READERS, data),
            (WITH, 1, data),
            (WITHOUT, READERS, few),
            (WITHOUT, 1, few),
        ):
            with lab.ours(some.url, "--transport", "kernel", url=origin.url) as mount:
                before = fetched(origin)
                done = epoch(lab, mount, some, readers, announced=who == WITH)
                beyond_bytes = max(beyond_bytes, fetched(origin) - before - done.bytes)
                passes.setdefault((who, readers), []).append(done)
    found = {who: median(some) for who, some in passes.items()}
    table = result.table(
        f"{len(data.names):,} files of 110 KiB, shuffled and cold, over TLS",
        "who", "readers", "files/s", "CPU us per file", "runs",
    )  # fmt: skip
    for (who, readers), one in found.items():
        runs = len(passes[who, readers])
        table.add(who, readers, one.files_per_s, one.cpu_us_per_file, runs)
    ratio = found[WITH, READERS].files_per_s / found[CURL, IN_FLIGHT].files_per_s
    result.bar(f"{READERS} readers, of bare libcurl's rate", ratio, 0.8, "x", at_least=True)
    ratio = found[WITH, 1].files_per_s / found[WITHOUT, 1].files_per_s
    result.bar("1 reader, of the rate without an order", ratio, 15.0, "x", at_least=True)
    result.bar("bytes from the origin beyond the files'", beyond_bytes, 0, "B")


def epoch(
    lab: Lab, mount: Mounted, data: Dataset, readers: int, seed: int = 1, *, announced: bool
) -> Pass:
    lab.drop_caches()
    for folder, _, _ in os.walk(mount.path):
        os.scandir(folder).close()
    how = {"readers": readers, "shuffled": True, "seed": seed, "announced": announced}
    return lab.read(mount, data, **how)


def fetched(origin: Shaped) -> int:
    return int(origin.counters()["object_bytes"])


# ---- a part of the data fits ----


def small_cache(lab: Lab, result: Result, data: Dataset, origin: Shaped) -> None:
    cache_bytes = int(SHARE * data.size_bytes)
    rates: dict[str, list[float]] = {}
    shares: list[float] = []
    for who in (WITHOUT, WITH):
        flags = ("--transport", "kernel")
        with lab.ours(data.url, *flags, url=origin.url, cache_size=str(cache_bytes)) as mount:
            for number in range(EPOCHS):
                cached_bytes = settled(lab, mount)
                before = fetched(origin)
                done = epoch(lab, mount, data, READERS, 10 + number, announced=who == WITH)
                if number:
                    rates.setdefault(who, []).append(done.files_per_s)
                if number and who == WITH:
                    beyond_bytes = data.size_bytes - cache_bytes
                    shares.append((fetched(origin) - before) / beyond_bytes)
                    cached = cached_bytes / data.size_bytes
    table = result.table(
        f"Cache of {SHARE:.0%} of the data ({cached:.0%} is cached), {READERS} readers, files/s",
        "who", *(f"epoch {number}" for number in range(2, EPOCHS + 1)),
    )  # fmt: skip
    for who, values in rates.items():
        table.add(who, *values)
    worst = min(ours / theirs for ours, theirs in zip(rates[WITH], rates[WITHOUT], strict=True))
    result.bar("cache of 40 %: the slowest epoch, of that without", worst, 4.0, "x", at_least=True)
    result.bar("cache of 40 %: bytes fetched, of those beyond its limit", max(shares), 1.02, "x")


def settled(lab: Lab, mount: Mounted) -> int:
    """Returns the cached bytes of files, once nothing is in flight."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        cache = lab.cachefs.status(mount.path)["cache"]
        tier = cache["tiers"][0]
        if not cache["fills_in_flight"] and not tier["commits_waiting"]:
            return int(tier["files"]) * SMALL_BYTES  # `cached_bytes` are allocated ones
    raise BenchFailed("fills did not end")


# ---- announcements ----


def announcements(lab: Lab, result: Result, data: Dataset, origin: Shaped) -> None:
    count = lab.size(ENTRIES, ENTRIES // 10)
    with lab.ours(data.url, "--transport", "kernel", url=origin.url) as mount:
        (server,) = [pid for pid, role in mount.roles.items() if role == "server"]
        os.listdir(mount.path)
        before_bytes = machine.rss_anon_bytes(server)
        took_s = announce_long(mount, count)
        grown_bytes = machine.rss_anon_bytes(server) - before_bytes
        function_s = announce_functions(lab, mount, count)
    result.bar(f"{count:,} inode numbers by ioctl, as user {NOBODY}", took_s, 1.0, "s")
    result.bar("memory of the worker for each of them", grown_bytes / count, 16.0, "B")
    result.bar(f"a function over {count:,} files", function_s * 1e3, 1.0, "ms")


def announce_long(mount: Mounted, count: int) -> float:
    repository = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", ANNOUNCE, repository, str(mount.path), str(count)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise BenchFailed(f"the announcement failed: {done.stderr.strip()[-300:]}")
    return float(done.stdout)


def announce_functions(lab: Lab, mount: Mounted, count: int) -> float:
    """Returns the median time of a call that announces a function."""
    record = find_target(
        str(mount.path), StateHome(str(lab.cachefs.home / ".cache/cachefs"))
    ).record
    table = lab.root / "inos"
    with BlockingClient.connect(record.socket) as client:
        attach = m.Attach(record.source, record.sync_interval_s, record.read_only)
        attached = client.call(attach)
        assert isinstance(attached, m.Attached)
        header = InoTableHeader(count, attached.namespace)
        table.write_bytes(header.encode() + array.array("Q", range(count)).tobytes())
        fd = os.open(table, os.O_RDONLY)
        took_s = []
        for number in range(20):
            order = Order(count, 7, number)
            body = m.AnnounceFunction(attached.namespace, "bench", order, Share())
            started = time.perf_counter()
            client.call(body, fd=fd)
            took_s.append(time.perf_counter() - started)
        os.close(fd)
    table.unlink()
    return statistics.median(took_s)


if __name__ == "__main__":
    main(run)
