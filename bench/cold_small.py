"""Cold files of 110 KiB, 16 readers, origin unshaped, over TLS: >= 2 x `rclone mount2
--vfs-cache-mode full` and s3fs, at <= 0.6 x their CPU per file. Over plain HTTP: >= 2 x rclone.

obstore in 16 threads and bare libcurl with 16 requests in flight are measured beside them: plain
GETs of the same objects without a file system. All take turns.
"""

from __future__ import annotations

from bench.datasets import Dataset
from bench.harness import Lab, main
from bench.origin import PLAIN, SCHEMES, TLS
from bench.peers import (
    CURL,
    OBSTORE,
    OURS,
    RCLONE,
    Act,
    cold,
    compare_mounts,
    compare_mounts_cpu,
    medians,
    mounts,
    show,
    turns,
)
from bench.report import Result

READERS = 16
AT_LEAST, CPU_AT_MOST = 2.0, 0.6  # of the better mount


def run(lab: Lab, result: Result) -> None:
    # Enough files that the start (first listing, first connections) is a small part of the time.
    data = lab.datasets.small(lab.size(8000, 500))
    passes = turns(lab, {s: against(lab, data, lab.over(s).direct_url) for s in SCHEMES})
    show(
        result, f"{len(data.names):,} files of 110 KiB, {READERS} readers", passes,
        ("files/s", "MB/s", "CPU us per file"),
        lambda one: (one.files_per_s, one.mb_per_s, one.cpu_us_per_file),
    )  # fmt: skip
    compare_mounts(
        result, "cold small files over TLS, of the better mount", passes[TLS],
        lambda one: one.files_per_s, AT_LEAST,
    )  # fmt: skip
    compare_mounts_cpu(
        result, "cold small files over TLS, CPU per file, of the mount that takes less",
        passes[TLS], lambda one: one.cpu_us_per_file, CPU_AT_MOST,
    )  # fmt: skip
    plain = medians(passes[PLAIN])
    ratio = plain[OURS].files_per_s / plain[RCLONE].files_per_s
    claim = "cold small files over plain HTTP, of rclone mount2"
    result.bar(claim, ratio, AT_LEAST, "x", at_least=True)
    result.notes.append("CPU: all processes of a file system; the whole process of a client.")


def against(lab: Lab, data: Dataset, url: str) -> dict[str, Act]:
    return {
        OURS: cold(lab, lambda: lab.ours(data.url, url=url), data, readers=READERS),
        **mounts(lab, data, url, readers=READERS),
        OBSTORE: lambda: lab.client("obstore_files", data, url, READERS),
        CURL: lambda: lab.client("curl_files", data, url, READERS),
    }


if __name__ == "__main__":
    main(run)
