"""`cachefs bench au`: what it prints, and that it leaves nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cachefs.core.mountinfo import read_mounts
from tests.services.commands import CACHEFS


def test_accelerators_of_a_mount_and_of_native_files(tmp_path: Path) -> None:
    flags = ["--model", "cosmoflow", "--files", "8", "--steps", "3", "--most", "2", "--json"]
    done = subprocess.run(
        [CACHEFS, "bench", "au", *flags, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["model"] == "cosmoflow"
    assert {*shown["accelerators"]} == {"frozen mount", "mount", "native files"}
    assert all(0 <= count <= 2 for count in shown["accelerators"].values())
    assert shown["covered"] == ["frozen mount"]
    for run in shown["runs"]:
        measured = run.keys() - {"accelerators"}
        assert measured <= {*shown["accelerators"]}
        assert all(0 <= run[place] <= 1 for place in measured)
    assert [*tmp_path.iterdir()] == []
    assert not [mount for mount in read_mounts() if str(tmp_path) in mount.mountpoint]
