"""Where the programs of a Kubernetes node are: scripts/kube-tools puts them there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

VERSION: Final = "1.36.3"
CACHE_HOME: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
FOLDER: Final = CACHE_HOME / "cachefs-tools" / f"kube-{VERSION}"
RUNTIME: Final = FOLDER / "debian"  # Debian's packages, unpacked
BUSYBOX: Final = RUNTIME / "bin" / "busybox"
RUNC: Final = RUNTIME / "usr" / "sbin" / "runc"
CNI: Final = RUNTIME / "usr" / "lib" / "cni"
# containerd looks for its shim on PATH.
PATH: Final = ":".join(
    map(str, (FOLDER, RUNTIME / "usr" / "bin", RUNTIME / "usr" / "sbin", os.environ["PATH"]))
)


def check() -> None:
    """Raises FileNotFoundError, which tells what to do, if they are not there."""
    if not (FOLDER / "kubectl").exists() or not BUSYBOX.exists():
        raise FileNotFoundError(f"no programs of Kubernetes in {FOLDER}: run scripts/kube-tools")
