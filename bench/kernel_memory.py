"""The kernel memory that processes take: by a control group of their own, where this process may
make one, else by the slabs of the whole machine."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


class KernelBytes:
    """Call it for the bytes now. `how`: for people."""

    def __init__(self, file: Path, pattern: str, how: str, unit_bytes: int = 1) -> None:
        self._file = file
        self._pattern = pattern
        self._unit_bytes = unit_bytes
        self.how = how

    def __call__(self) -> int:
        found = re.search(self._pattern, self._file.read_text(), re.MULTILINE)
        return int(found[1]) * self._unit_bytes if found else 0


def _of_machine() -> KernelBytes:
    how = "slabs of the whole machine"
    return KernelBytes(Path("/proc/meminfo"), r"^Slab:\s+(\d+) kB", how, 1024)


@contextlib.contextmanager
def kernel_bytes_of(pids: Sequence[int]) -> Iterator[KernelBytes]:
    """Counts what these processes take from now on. They are moved back at the end."""
    try:
        group, home = _new_group()
    except OSError:
        yield _of_machine()
        return
    try:
        _move(pids, group)
        yield _of_group(group)
    finally:
        _move(pids, home)
        with contextlib.suppress(OSError):
            group.rmdir()


def _new_group() -> tuple[Path, Path]:
    """Returns a new control group, and the one above it. Raises OSError."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    by_controller = dict(line.split(":", 2)[1:] for line in lines)
    if "memory" in by_controller:
        home = GROUPS / "memory" / by_controller["memory"].lstrip("/")
    else:
        home = GROUPS / by_controller.get("", "/").lstrip("/")
    group = home / f"cachefs-bench-{os.getpid()}"
    group.mkdir()
    return group, home


def _of_group(group: Path) -> KernelBytes:
    how = "a control group of the mount's processes"
    usage = group / "memory.kmem.usage_in_bytes"
    if usage.exists():
        return KernelBytes(usage, r"(\d+)", how)
    return KernelBytes(group / "memory.stat", r"^slab (\d+)", how)


def _move(pids: Sequence[int], group: Path) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            (group / "cgroup.procs").write_text(str(pid))
