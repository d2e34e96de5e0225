"""`make kube`: runs the tests of this folder in namespaces of their own, and then checks that
nothing of them is left outside. Arguments go to pytest.

The outer process starts the first process of the namespaces (`--first`), which prepares them and
starts pytest."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.kube.real import namespaces
from tests.kube.real.cgroups import PREFIX, all_groups

FOLDER: Final = Path(__file__).parent
MODULE: Final = "tests.kube.real"
FIRST: Final = "--first"


def leftovers() -> set[str]:
    """Returns what clusters made outside of their namespaces: files, control groups, mounts."""
    files = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {*map(str, files), *map(str, all_groups()), *(line for line in lines if PREFIX in line)}


def main(arguments: list[str]) -> int:
    """Returns the exit status of pytest, or 1 if something is left."""
    if arguments[:1] == [FIRST]:
        namespaces.prepare()
        pytest = [sys.executable, "-m", "pytest", str(FOLDER), *arguments[1:]]
        return namespaces.run_first(pytest)
    before = leftovers()
    itself = [sys.executable, "-m", MODULE, FIRST, *arguments]
    status = subprocess.run(namespaces.entered(*itself)).returncode
    left = leftovers() - before
    for one in sorted(left):
        print(f"left behind: {one}", file=sys.stderr)
    _remove_groups(left)
    return status or bool(left)


def _remove_groups(left: set[str]) -> None:
    """Removes the control groups of a cluster whose tests were killed."""
    for group in all_groups():
        if str(group) in left:
            for path in (*sorted(group.rglob("*/"), reverse=True), group):
                with contextlib.suppress(OSError):
                    path.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
