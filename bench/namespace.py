"""`find` with a stat of each of 100,000 objects: cold <= 1.5 x plain listing by obstore + 5 s;
warm, kernel caches dropped, >= 20,000 entries/s.

The real `find` prints every file's size; the sum must be right.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench.datasets import Dataset
from bench.harness import Lab, main, middle
from bench.mounts import BenchFailed
from bench.report import Result

FILE_BYTES = 64
FIND_LIMIT_S = 300.0


def run(lab: Lab, result: Result) -> None:
    data = lab.datasets.small(lab.size(100_000, 5000), FILE_BYTES)
    url = lab.origin.direct_url
    listing_s = middle(lab.client("obstore_list", data, url).wall_s for _ in range(lab.runs))
    with lab.ours(data.url, url=url) as mount:
        lab.drop_caches()
        cold_s = find(mount.path, data)
        warm = []
        for _ in range(lab.runs):
            lab.drop_caches()
            warm.append(find(mount.path, data))
        kept_s = find(mount.path, data)
    native_s = find(data.folder, data)
    count = len(data.names)
    table = result.table(f"{count:,} objects in folders of 1,000", "what", "s", "entries/s")
    for what, took_s in {
        "plain listing by obstore": listing_s,
        "find + stat, cold": cold_s,
        "find + stat, warm, kernel caches dropped": middle(warm),
        "find + stat, warm, kernel caches kept": kept_s,
        "find + stat, native tmpfs": native_s,
    }.items():
        table.add(what, took_s, count / took_s)
    result.bar("find + stat, cold", cold_s, 1.5 * listing_s + 5, "s")
    rate = count / middle(warm)
    result.bar("find + stat, warm, caches dropped", rate, 20_000, "entries/s", at_least=True)


def find(root: Path, data: Dataset) -> float:
    """Returns the seconds of one walk with a stat each. Raises BenchFailed on a wrong count or
    size."""
    started = time.monotonic()
    done = subprocess.run(
        ["find", str(root), "-type", "f", "-printf", "%s %P\n"],
        check=True,
        capture_output=True,
        timeout=FIND_LIMIT_S,
    )
    took_s = time.monotonic() - started
    lines = done.stdout.decode().splitlines()
    size = sum(int(line.partition(" ")[0]) for line in lines)
    names = {line.partition(" ")[2] for line in lines}
    if size != data.size_bytes or names != set(data.names):
        raise BenchFailed(f"find saw {len(lines)} files of {size} bytes in all")
    return took_s


if __name__ == "__main__":
    main(run)
