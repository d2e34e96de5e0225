"""Decides what is left over: shared mounts that no pod uses, and deposits without a mount. Pure.

Each is removed once it has been seen so for `linger_s` without a break.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from posixpath import dirname
from typing import NamedTuple

from cachefs.core.mountinfo import Mounts
from cachefs.launcher.state import mount_id


class Snapshot(NamedTuple):
    """What the node has at one moment."""

    shared: Mapping[str, str]  # place -> device of the shared mounts
    users: Mapping[str, int]  # device -> mounts of it elsewhere
    devices: frozenset[str]  # of all mounts of CacheFS
    entries: Mapping[str, str] | None  # key -> device of a deposit, "" if unknown; None: no holder

    @classmethod
    def of(cls, mounts: Mounts, directory: str, entries: Mapping[str, str] | None) -> Snapshot:
        """Returns what there is. `directory`: of the shared mounts."""
        ours = [mount for mount in mounts if mount.is_cachefs]
        shared = {m.mountpoint: m.device for m in ours if dirname(m.mountpoint) == directory}
        used = {device: users(mounts, device, directory) for device in shared.values()}
        return cls(shared, used, frozenset(mount.device for mount in ours), entries)


def users(mounts: Mounts, device: str, directory: str) -> int:
    """Returns how many mounts of a device there are elsewhere than in this directory."""
    return sum(dirname(mount.mountpoint) != directory for mount in mounts.of_device(device))


class Unmount(NamedTuple):
    """Remove this shared mount, if it still is of this device and has no user."""

    place: str
    device: str


class Drop(NamedTuple):
    """Drop this entry of the holder."""

    key: str


class Leftovers:
    """Since when each leftover has been one."""

    def __init__(self, linger_s: float) -> None:
        self._linger_s = linger_s
        self._since: dict[Unmount | Drop, float] = {}

    def handle(self, snapshot: Snapshot, now: float) -> list[Unmount | Drop]:
        """Returns what to remove now. A removal that fails is returned again the next time."""
        found: list[Unmount | Drop] = [
            Unmount(place, device)
            for place, device in snapshot.shared.items()
            if not snapshot.users.get(device)
        ]
        if snapshot.entries is not None:
            found += [Drop(key) for key in snapshot.entries if not _is_mounted(key, snapshot)]
        self._since = {item: self._since.get(item, now) for item in found}
        return [item for item in found if now - self._since[item] >= self._linger_s]


def _is_mounted(key: str, snapshot: Snapshot) -> bool:
    """Returns whether the mount of an entry is there. The kernel numbers devices again, so a shared
    mount of the same device at another place does not count."""
    assert snapshot.entries is not None
    mount, _, _ = key.partition(".")
    places = {mount_id(place): device for place, device in snapshot.shared.items()}
    device = snapshot.entries[key]
    if not device:  # a deposit of another version
        return mount in places
    if mount in places:
        return places[mount] == device
    return device in snapshot.devices and device not in snapshot.shared.values()


def keys_of(place: str, keys: Mapping[str, Hashable]) -> list[str]:
    """Returns those keys of the holder that belong to the mount at this place."""
    return [key for key in keys if key.partition(".")[0] == mount_id(place)]
