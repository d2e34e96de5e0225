"""Few readers of cold files of 110 KiB, origin with 20 ms of latency: in name order one reader gets
>= 5 x the rate of rclone's mount2, and every byte is fetched once. In a random order nothing can be
prefetched, and only bytes that are read are fetched. Over TLS and over plain HTTP."""

from __future__ import annotations

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main, median
from bench.mounts import Mounted
from bench.origin import SCHEMES, Shaped
from bench.report import Result

LATENCY_S = 0.02
READERS = (1, 8)
AT_LEAST = 5.0
ORDERS = {"by name": False, "shuffled": True}


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(1000, 300))
    for scheme in SCHEMES:
        one_scheme(lab, result, data, scheme)


def one_scheme(lab: Lab, result: Result, data: Dataset, scheme: str) -> None:
    over = f"over {SCHEMES[scheme]}"
    rates: dict[tuple[str, str, int], Pass] = {}
    beyond_bytes = 0
    with lab.light(scheme) as origin:
        origin.shape(None, LATENCY_S)
        for order, shuffled in ORDERS.items():
            for readers in READERS:
                passes = []
                for _ in range(lab.runs):
                    with lab.ours(data.url, "--transport", "kernel", url=origin.url) as mount:
                        before = _bytes(origin)
                        passes.append(cold(lab, mount, data, readers, shuffled))
                    beyond_bytes = max(beyond_bytes, _bytes(origin) - before - passes[-1].bytes)
                rates["cachefs", order, readers] = median(passes)
                with lab.rclone(data, origin.url) as mount:
                    done = cold(lab, mount, data, readers, shuffled)
                rates["rclone mount2", order, readers] = done
    show(result, rates, f"{len(data.names):,} files of 110 KiB {over}")
    ours, theirs = rates["cachefs", "by name", 1], rates["rclone mount2", "by name", 1]
    ratio = ours.files_per_s / theirs.files_per_s
    claim = f"one reader by name {over}, of rclone mount2"
    result.bar(claim, ratio, AT_LEAST, "x", at_least=True)
    result.bar(f"bytes from the origin beyond the files' {over}", beyond_bytes, 0, "B")


def _bytes(origin: Shaped) -> int:
    return int(origin.counters()["object_bytes"])


def show(result: Result, rates: dict[tuple[str, str, int], Pass], what: str) -> None:
    columns = [f"{order}, {readers}" for order in ORDERS for readers in READERS]
    table = result.table(f"{what}, files/s by order and readers", "who", *columns)
    for who in ("cachefs", "rclone mount2"):
        cells = [rates[who, order, readers].files_per_s for order in ORDERS for readers in READERS]
        table.add(who, *cells)


def cold(lab: Lab, mount: Mounted, data: Dataset, readers: int, shuffled: bool) -> Pass:
    lab.drop_caches()
    return lab.read(mount, data, readers=readers, shuffled=shuffled)


if __name__ == "__main__":
    main(run)
