"""`make kube`: builds the image, runs the tests of this folder in namespaces of their own, and then
checks that nothing of them is left outside. Arguments go to pytest.

The namespaces reach no other machine, so that the image is built outside.

The outer process starts the first process of the namespaces (`--first`), which prepares them and
starts pytest. Ctrl-C is for pytest, which ends the cluster; both others wait for it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.deploy import image
from tests.kube.real import leftovers, namespaces

FOLDER: Final = Path(__file__).parent
MODULE: Final = "tests.kube.real"
FIRST: Final = "--first"
LIMIT: Final = "--timeout=300"  # of a test that names none: a busy machine starts pods slowly


def main(arguments: list[str]) -> int:
    """Returns the exit status of pytest, or 1 if something is left."""
    signal.signal(signal.SIGINT, lambda *_: None)
    if arguments[:1] == [FIRST]:
        namespaces.prepare()
        pytest = [sys.executable, "-m", "pytest", LIMIT, str(FOLDER)]
        return namespaces.run_first([*pytest, *arguments[1:]])
    image.built()
    before = leftovers.outside()
    inside = [sys.executable, "-m", MODULE, FIRST, *arguments]
    with namespaces.machine_settings_kept():
        status = subprocess.run(namespaces.entered(*inside)).returncode
    left = leftovers.outside() - before
    for one in sorted(left):
        print(f"left behind: {one}", file=sys.stderr)
    leftovers.remove(left)
    return status or bool(left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
