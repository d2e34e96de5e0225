"""The other mount namespaces that still have a mount: unmounting it here does not end it there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from cachefs.core.mountinfo import read_mounts


class Holder(msgspec.Struct, frozen=True):
    """A process in a mount namespace that has the mount, and the mount point there."""

    pid: int
    name: str
    mountpoint: str

    def describe(self) -> str:
        return f"{self.name} (pid {self.pid}) at {self.mountpoint}"


def find_holders(device: str, proc: str = "/proc") -> list[Holder]:
    """Returns one process, of the lowest pid, of each other mount namespace that has a mount of
    `device` (major:minor). Only root sees the namespaces of other users' processes."""
    found: dict[str, Holder | None] = {_namespace(Path(proc, "self")): None}
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        with contextlib.suppress(OSError):
            process = Path(proc, str(pid))
            namespace = _namespace(process)
            if namespace not in found:
                found[namespace] = _holder(process, pid, device)
    return [holder for holder in found.values() if holder is not None]


def _namespace(process: Path) -> str:
    return os.readlink(process / "ns" / "mnt")


def _holder(process: Path, pid: int, device: str) -> Holder | None:
    for mount in read_mounts(process / "mountinfo").of_device(device):
        return Holder(pid, (process / "comm").read_text().strip(), mount.mountpoint)
    return None
