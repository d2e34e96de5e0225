"""A cold sequential read runs at the origin's rate: >= 0.95 x the shape (150 MB/s and 15 ms). From
an origin without a shape, over TLS: >= 1.2 x the rate of the better of rclone's mount2 and s3fs, at
<= 0.8 x the CPU per GB of the cheaper one, and <= 0.5 s of CPU per GB more than bare libcurl that
writes the same file.

obstore (16 threads, 8 MiB ranges) is measured beside it, each with its CPU per GB. Bare libcurl has
4 such ranges in flight, in one thread. All take turns.
"""

from __future__ import annotations

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main
from bench.origin import SCHEMES, TLS
from bench.peers import (
    CURL,
    OBSTORE,
    OURS,
    RCLONE,
    Act,
    Passes,
    cold,
    compare_mounts,
    compare_mounts_cpu,
    medians,
    mounts,
    show,
    turns,
)
from bench.report import Result

RATE_BYTES_PER_S = 150e6
LATENCY_S = 0.015
IN_FLIGHT = 4
AT_LEAST, CPU_AT_MOST = 1.2, 0.8  # of the better mount
MORE_CPU_S_PER_GB = 0.5  # than bare libcurl


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.big(lab.size(512, 128))
    shaped(lab, result, data)
    unshaped(lab, result, data)
    result.notes.append("CPU: all processes of a file system; the whole process of a client.")


def shaped(lab: Lab, result: Result, data: Dataset) -> None:
    contenders = {}
    for scheme in SCHEMES:
        origin = lab.over(scheme)
        origin.shape(RATE_BYTES_PER_S, LATENCY_S)
        contenders[scheme] = at_the_rate(lab, data, origin.proxy_url)
    passes = turns(lab, contenders)
    title = f"{data.size_bytes / 1e6:,.0f} MB, once, at {RATE_BYTES_PER_S / 1e6:g} MB/s"
    show(
        result, title, passes, ("MB/s", "of the shape", "CPU s per GB"),
        lambda one: (one.mb_per_s, share(one), one.cpu_s_per_gb),
    )  # fmt: skip
    for scheme, over in SCHEMES.items():
        rate = share(medians(passes[scheme])[OURS])
        claim = f"cold sequential over {over}, of the shaped rate"
        result.bar(claim, rate, 0.95, "x", at_least=True)


def at_the_rate(lab: Lab, data: Dataset, url: str) -> dict[str, Act]:
    return {
        OURS: ours(lab, data, url),
        OBSTORE: lambda: lab.client("obstore_file", data, url),
        RCLONE: mounts(lab, data, url)[RCLONE],
    }


def unshaped(lab: Lab, result: Result, data: Dataset) -> None:
    passes = turns(lab, {s: against(lab, data, lab.over(s).direct_url) for s in SCHEMES})
    title = f"{data.size_bytes / 1e6:,.0f} MB, once, as fast as the origin gives them"
    show(
        result, title, passes, ("MB/s", "CPU s per GB"),
        lambda one: (one.mb_per_s, one.cpu_s_per_gb),
    )  # fmt: skip
    bars(result, passes[TLS])


def against(lab: Lab, data: Dataset, url: str) -> dict[str, Act]:
    return {
        OURS: ours(lab, data, url),
        **mounts(lab, data, url),
        CURL: lambda: lab.client("curl_to_file", data, url, IN_FLIGHT),
    }


def bars(result: Result, passes: Passes) -> None:
    compare_mounts(
        result, "unshaped over TLS: rate, of the better mount", passes,
        lambda one: one.mb_per_s, AT_LEAST,
    )  # fmt: skip
    compare_mounts_cpu(
        result, "unshaped over TLS: CPU per GB, of the mount that takes less", passes,
        lambda one: one.cpu_s_per_gb, CPU_AT_MOST,
    )  # fmt: skip
    found = medians(passes)
    limit = found[CURL].cpu_s_per_gb + MORE_CPU_S_PER_GB
    result.bar("unshaped over TLS: CPU per GB", found[OURS].cpu_s_per_gb, limit, "s")


def ours(lab: Lab, data: Dataset, url: str) -> Act:
    return cold(lab, lambda: lab.ours(data.url, url=url), data)


def share(one: Pass) -> float:
    return one.mb_per_s * 1e6 / RATE_BYTES_PER_S


if __name__ == "__main__":
    main(run)
