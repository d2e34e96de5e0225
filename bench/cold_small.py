"""Cold files of 110 KiB, 16 readers, origin unshaped: >= 2 x `rclone mount2 --vfs-cache-mode full`.

obstore in 16 threads stands beside them: plain GETs of the same objects, no file system.
"""

from __future__ import annotations

from bench.datasets import Dataset
from bench.harness import Lab, Pass, main, median
from bench.mounts import Mounted
from bench.report import Result

READERS = 16


def run(lab: Lab, result: Result) -> None:
    # So many that the start (the first listing, the first connections) is a small part of it.
    data = lab.datasets.small(lab.size(8000, 500))
    url = lab.origin.direct_url
    passes: dict[str, list[Pass]] = {"cachefs": [], "rclone mount2": [], "obstore": []}
    for _ in range(lab.runs):
        with lab.ours(data.url, url=url) as mount:
            passes["cachefs"].append(cold(lab, mount, data))
        with lab.rclone(data, url) as mount:
            passes["rclone mount2"].append(cold(lab, mount, data))
        passes["obstore"].append(lab.obstore("obstore_files", data, url))
    title = f"{len(data.names):,} files of 110 KiB, 16 readers, median of {lab.runs}"
    table = result.table(title, "who", "files/s", "MB/s", "CPU us per file")
    for who, runs in passes.items():
        one = median(runs)
        table.add(who, one.files_per_s, one.mb_per_s, one.cpu_us_per_file)
    ratio = median(passes["cachefs"]).files_per_s / median(passes["rclone mount2"]).files_per_s
    result.bar("cold small files, of rclone mount2", ratio, 2.0, "x", at_least=True)
    result.notes.append("CPU: client and server of a file system; the whole process of obstore.")


def cold(lab: Lab, mount: Mounted, data: Dataset) -> Pass:
    lab.drop_caches()
    return lab.read(mount, data, readers=READERS)


if __name__ == "__main__":
    main(run)
