"""mount(2) and umount2(2) as the driver uses them. No function here waits for a server of FUSE,
except where the kernel has defects: callers use `cachefs.csi.deadlines`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Final

from cachefs.core.errors import CannotMount
from cachefs.core.mountinfo import read_mounts
from cachefs.fuse import mount_flags, mounting

MAX_LAYERS: Final = 64  # mounts at one target
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND = 1, 2, 4, 32, 4096
_OF_MOUNT: Final = ("noexec", "noatime", "nodiratime", "relatime", "strictatime")


def bind_read_only(source: str, target: str, options: Iterable[str]) -> None:
    """Binds a shared mount to a target. The flags of a new bind are those that its remount names,
    so it repeats `options`. Raises CannotMount; then nothing is bound."""
    _mount(source, target, _BIND)
    flags = mount_flags.flags_of(option for option in options if option in _OF_MOUNT)
    try:
        _mount("", target, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV | flags)
    except BaseException:
        detach(target)
        raise


def detach(place: str) -> None:
    """Unmounts lazily what is mounted at this place; processes with open files keep it. Does
    nothing if nothing is. Raises CannotMount."""
    mounting.umount2(place, mounting.MNT_DETACH | mounting.UMOUNT_NOFOLLOW)


def detach_all(place: str) -> None:
    """Unmounts every layer at this place. Raises CannotMount."""
    for _ in range(MAX_LAYERS):
        if not read_mounts().layers(place):
            return
        detach(place)
    raise CannotMount(f"more than {MAX_LAYERS} mounts", path=place)


def _mount(source: str, target: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None):
        cause = os.strerror(ctypes.get_errno())
        raise CannotMount(f"the kernel refuses the bind mount: {cause}", path=target)
