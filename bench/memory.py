"""RssAnon stays < 100 MiB in the client and < 200 MiB in the server, and flat, while 8 GiB are read
through a 1 GiB cache, from `file://` and from `s3://`.

Flat: the peak of the second half of the read is at most 16 MiB above that of the first half.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from bench import machine
from bench.datasets import MIB
from bench.harness import Lab, main
from bench.mounts import Mounted
from bench.report import Result

SAMPLE_S = 0.1
GROWTH_LIMIT_MIB = 16.0
LIMITS_MIB = {"client": 100.0, "server": 200.0}


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.sparse(lab.size(8192, 1024))
    cache_size = f"{lab.size(1024, 128)}MiB"
    columns = ("source", "role", "start MiB", "peak, first half", "peak, second half", "GB/s read")
    table = result.table(f"RssAnon while {data.size_bytes / MIB / 1024:g} GiB are read", *columns)
    sources = {
        "file://": lab.ours(
            f"file://{data.folder}", "--admission", "always", cache_size=cache_size
        ),
        "s3://": lab.ours(data.url, url=lab.origin.direct_url, cache_size=cache_size),
    }
    for source, mounting in sources.items():
        with mounting as mount:
            lab.drop_caches()
            with sampled(lab, mount) as samples:
                rate = lab.read(mount, data).mb_per_s / 1000
        for role, values in samples.items():
            half = len(values) // 2
            first, second = max(values[:half]) / MIB, max(values[half:]) / MIB
            table.add(source, role, values[0] / MIB, first, second, rate)
            limit = LIMITS_MIB.get(role, LIMITS_MIB["client"])
            result.bar(f"{source} RssAnon of the {role}", max(first, second), limit, "MiB")
            growth = second - first
            result.bar(f"{source} growth of the {role}", growth, GROWTH_LIMIT_MIB, "MiB")


@contextmanager
def sampled(lab: Lab, mount: Mounted) -> Iterator[dict[str, list[int]]]:
    """Samples the RssAnon of each role (the sum of its processes), in bytes, ten times a second."""
    roles = {process["pid"]: process["role"] for process in lab.cachefs.processes(mount.path)}
    samples: dict[str, list[int]] = defaultdict(list)
    stop = threading.Event()

    def sample() -> None:
        while True:
            sums: dict[str, int] = defaultdict(int)
            for pid, role in roles.items():
                sums[role] += machine.rss_anon_bytes(pid)
            for role, value in sums.items():
                samples[role].append(value)
            if stop.wait(SAMPLE_S):
                return

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main(run)
