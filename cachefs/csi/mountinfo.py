"""The mounts of this mount namespace, and who uses a shared mount. `parse` and `Mounts` are pure.

Nothing here accesses a mount: a dead or hanging one blocks every access.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from cachefs.fuse.mounting import SUBTYPE

MOUNTINFO: Final = Path("/proc/self/mountinfo")
FSTYPE: Final = f"fuse.{SUBTYPE}"
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
_TAIL: Final = b" - "


class Mount(NamedTuple):
    """One line of mountinfo."""

    device: str  # major:minor
    mountpoint: str
    fstype: str


def parse(text: bytes) -> list[Mount]:
    """Returns the mounts in the order of the kernel: of several at one place the last is on top."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(_TAIL)
        fields = left.split(b" ")
        if separator and len(fields) > 4:
            place = os.fsdecode(_ESCAPE.sub(lambda octal: bytes([int(octal[1], 8)]), fields[4]))
            found.append(Mount(fields[2].decode(), place, right.split(b" ")[0].decode()))
    return found


class Mounts:
    """A snapshot of the mounts."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._mounts = tuple(mounts)

    @classmethod
    def now(cls) -> Mounts:
        return cls(parse(MOUNTINFO.read_bytes()))

    def top(self, place: str) -> Mount | None:
        """Returns the topmost mount at exactly this place."""
        return next((m for m in reversed(self._mounts) if m.mountpoint == place), None)

    def layers(self, place: str) -> int:
        """Returns how many mounts are at exactly this place."""
        return sum(m.mountpoint == place for m in self._mounts)

    def shared(self, directory: str) -> dict[str, str]:
        """Returns place -> device of the shared mounts, which are directly in this directory."""
        return {
            m.mountpoint: m.device
            for m in self._mounts
            if m.fstype == FSTYPE and os.path.dirname(m.mountpoint) == directory
        }

    def users(self, device: str, directory: str) -> int:
        """Returns how many mounts of a device there are elsewhere than in this directory."""
        return sum(
            m.device == device and os.path.dirname(m.mountpoint) != directory for m in self._mounts
        )

    def devices(self) -> set[str]:
        """Returns the devices of all mounts of CacheFS."""
        return {m.device for m in self._mounts if m.fstype == FSTYPE}
