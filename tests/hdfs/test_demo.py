"""`make stores` as a user runs it: every change is seen on both nodes, and nothing is left."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 170.0
SEEN = re.compile(r"^(\S.*?) {2,}(\d+\.\d\d) s +(\d+\.\d\d) s$", re.MULTILINE)


def test_each_node_sees_each_change() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo.stores"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    seen = {title: (float(one), float(other)) for title, one, other in SEEN.findall(done.stdout)}
    pushed, polled, waited = seen.values()
    assert max(pushed) < 1.0, "by webhook"
    assert max(polled) < 3.0, "polled each second"
    assert max(waited) < 10.0, "the sync interval is 4 s"
    assert min(waited) > max(pushed), "an interval alone is slower"
    for file in ("train/labels.csv", "warehouse/day=1/part-0", "by-interval/labels.csv"):
        assert f"$D/mnt/{file}" in done.stdout
    assert "nothing is left behind" in done.stdout
