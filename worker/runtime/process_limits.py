"""The limits of this process: memory (of its cgroup, version 2 or 1, or of the machine), from the
kernel's files at the start, and descriptors."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from cachefs.core.errors import BadConfig, TooManyOpenFiles, lacks_descriptors

FEW_DESCRIPTORS: Final = 1024  # 256 reads of small files need two each, and as many for others
REMEDY: Final = "raise its hard limit (`ulimit -Hn`, LimitNOFILE=) and start it again"


def available_memory(root: Path = Path("/")) -> int:
    """Returns the memory limit of this process, in bytes. `root` has `proc` and `sys`."""
    limits = [total_memory(root)]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    return min(limits)


def total_memory(root: Path = Path("/")) -> int:
    """Returns the memory of the machine, in bytes; 1 GiB if it is unknown."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 1 << 30


def _limits(mount: Path, path: str, name: str) -> list[int]:
    """Returns the limits of a cgroup and of all above it. If the path is not below the mount (a
    container that sees only its own group), only the limit of the mount itself counts."""
    folder = mount / path.lstrip("/")
    folders = [folder, *folder.parents]
    within = [one for one in folders if one == mount or mount in one.parents]
    texts = [text for one in within for text in _lines(one / name)[:1]]
    return [int(text) for text in texts if text.isdigit()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def allow_many_descriptors() -> None:
    """Sets the descriptor limit to the hard limit, since each partial file and segment has one.
    Raises BadConfig if that is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < FEW_DESCRIPTORS:
        cause = f"only {hard} files may be open, and a server needs {FEW_DESCRIPTORS}"
        raise BadConfig(cause, remedy=REMEDY)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def too_many_open_files() -> TooManyOpenFiles:
    """Returns the error of a call that failed for that reason."""
    return TooManyOpenFiles(
        f"the server has {descriptors()} files open, as many as its limit allows",
        remedy=REMEDY,
    )


def classified(error: Exception) -> Exception:
    """Returns the error of a call, typed if it failed for that reason."""
    return too_many_open_files() if lacks_descriptors(error) else error


def descriptors() -> int:
    """Returns the limit of descriptors of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
