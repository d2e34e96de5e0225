"""A cold sequential read of 8 GiB runs at the origin's rate: >= 0.95 x the shape (300 MB/s and 15
ms). It needs at most 0.7 s of CPU per GB (client and server) more than a client that writes to the
same place: bare libcurl over TLS, obstore over plain HTTP.

obstore fetches 16 ranges of 8 MiB at a time into a file on the same tmpfs, bare libcurl 4. rclone's
mount2, and the client without a bar, read 2 GiB. The light origin leaves the CPUs to the
contenders. The kernel drops the pages that were read, as with data larger than memory: a virtual
machine gets its last gigabytes from its host, at many times the cost of a copy.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main
from bench.origin import PLAIN, SCHEMES, TLS
from bench.peers import CURL, OBSTORE, OURS, RCLONE, Act, cold, medians, mounts, show, turns
from bench.report import Result

RATE_BYTES_PER_S = 300e6
LATENCY_S = 0.015
MORE_CPU_S_PER_GB = 0.7
IN_FLIGHT = 4
CLIENTS = {TLS: CURL, PLAIN: OBSTORE}


def run(lab: Lab, result: Result) -> None:
    large, less = lab.datasets.sparse(lab.size(8192, 512)), lab.datasets.sparse(lab.size(2048, 512))
    contenders = {}
    with ExitStack() as stack:
        for scheme in SCHEMES:
            origin = stack.enter_context(lab.light(scheme))
            origin.shape(RATE_BYTES_PER_S, LATENCY_S)
            contenders[scheme] = against(lab, scheme, large, less, origin.url)
        passes = turns(lab, contenders)
    show(
        result,
        f"{large.size_bytes / 1e9:.1f} GB, once; without a bar {less.size_bytes / 1e9:.1f} GB",
        passes,
        ("MB/s", "of the shape", "CPU s per GB"),
        lambda one: (one.mb_per_s, share(one), one.cpu_s_per_gb),
    )
    for scheme, over in SCHEMES.items():
        found = medians(passes[scheme])
        rate, claim = share(found[OURS]), f"cold sequential over {over}, of the shaped rate"
        result.bar(claim, rate, 0.95, "x", at_least=True)
        limit = found[CLIENTS[scheme]].cpu_s_per_gb + MORE_CPU_S_PER_GB
        claim = f"cold sequential over {over}, CPU per GB"
        result.bar(claim, found[OURS].cpu_s_per_gb, limit, "s")
    result.notes.append("CPU: all processes of a file system; the whole process of a client.")


def against(lab: Lab, scheme: str, data: Dataset, less: Dataset, url: str) -> dict[str, Act]:
    by = {who: data if who == CLIENTS[scheme] else less for who in (CURL, OBSTORE)}
    flags = ("--transport", "kernel")
    mounting = lambda: lab.ours(data.url, *flags, url=url, cache_size="10GiB")  # noqa: E731
    return {
        OURS: cold(lab, mounting, data, forget=True),
        CURL: lambda: lab.client("curl_to_file", by[CURL], url, IN_FLIGHT),
        OBSTORE: lambda: lab.client("obstore_to_file", by[OBSTORE], url),
        RCLONE: mounts(lab, less, url, forget=True)[RCLONE],
    }


def share(one: Pass) -> float:
    return one.mb_per_s * 1e6 / RATE_BYTES_PER_S


if __name__ == "__main__":
    main(run)
