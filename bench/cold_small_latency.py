"""Cold files of 110 KiB, 64 in flight, origin with 20 ms of latency, over TLS: >= 0.9 x bare
libcurl with as many requests in flight, in name order and shuffled. Over plain HTTP: >= 0.9 x
obstore with as many threads, at <= 0.4 ms of CPU per file more than obstore.

64 readers read. In name order the following files are prefetched, so that more than 64 files are in
flight. In a shuffled order nothing is prefetched: 64 files are in flight. rclone's mount2 is
measured beside. The origin is the light one: 64 requests in 20 ms are 3,200 a second, which a real
server cannot answer on the shared CPUs.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench.datasets import Dataset
from bench.harness import Lab, main
from bench.origin import PLAIN, SCHEMES, TLS
from bench.peers import CURL, OBSTORE, OURS, RCLONE, Act, Passes, cold, medians, mounts, show, turns
from bench.report import Result

LATENCY_S = 0.02
IN_FLIGHT = 64
AT_LEAST = 0.9
MORE_CPU_US = 400.0
SHUFFLED = "cachefs, shuffled"


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(8000, 1000))
    contenders = {}
    with ExitStack() as stack:
        for scheme in SCHEMES:
            origin = stack.enter_context(lab.light(scheme))
            origin.shape(None, LATENCY_S)
            contenders[scheme] = against(lab, data, origin.url)
        passes = turns(lab, contenders)
    show(
        result, f"{len(data.names):,} files of 110 KiB, {IN_FLIGHT} readers", passes,
        ("files/s", "of the latency's", "CPU us per file"),
        lambda one: (
            one.files_per_s, one.files_per_s * LATENCY_S / IN_FLIGHT, one.cpu_us_per_file
        ),
    )  # fmt: skip
    bars(result, passes)
    result.notes.append("CPU: all processes of a file system; the whole process of a client.")


def against(lab: Lab, data: Dataset, url: str) -> dict[str, Act]:
    def ours(shuffled: bool) -> Act:
        flags = ("--transport", "kernel")
        how = {"readers": IN_FLIGHT, "shuffled": shuffled}
        return cold(lab, lambda: lab.ours(data.url, *flags, url=url), data, **how)

    return {
        OURS: ours(False),
        SHUFFLED: ours(True),
        CURL: lambda: lab.client("curl_files", data, url, IN_FLIGHT),
        OBSTORE: lambda: lab.client("obstore_files", data, url, IN_FLIGHT),
        RCLONE: mounts(lab, data, url, readers=IN_FLIGHT)[RCLONE],
    }


def bars(result: Result, passes: dict[str, Passes]) -> None:
    tls, plain = medians(passes[TLS]), medians(passes[PLAIN])
    for who in (OURS, SHUFFLED):
        ratio = tls[who].files_per_s / tls[CURL].files_per_s
        result.bar(f"{who} over TLS, of bare libcurl's rate", ratio, AT_LEAST, "x", at_least=True)
    ratio = plain[OURS].files_per_s / plain[OBSTORE].files_per_s
    result.bar("cachefs over plain HTTP, of obstore's rate", ratio, AT_LEAST, "x", at_least=True)
    limit = plain[OBSTORE].cpu_us_per_file + MORE_CPU_US
    claim = "cachefs over plain HTTP, CPU per file"
    result.bar(claim, plain[OURS].cpu_us_per_file, limit, "us")


if __name__ == "__main__":
    main(run)
