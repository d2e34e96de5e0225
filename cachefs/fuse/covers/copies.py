"""Copies of covers in other mount namespaces. A namespace that was made while a directory was
covered has a copy, and unless its mounts follow ours, it keeps the copy after an uncover here.

A thread of its own enters such a namespace and unmounts the copy there. A bind mount that a user
made of a covered directory (a volume of a container) shows the tree, too: the same thread lays a
clone of the mount's own directory over it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from cachefs.core.mountinfo import Mount, Mounts, read_mounts

log = logging.getLogger(__name__)

_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_MNT_DETACH, _NOFOLLOW = 2, 8
_LIMIT_S: Final = 5.0  # for one namespace


def remove(cover: Mount) -> None:
    """Unmounts the copies of a removed cover in other mount namespaces. Logs what stays."""
    for pid, mounts in _other_namespaces():
        found = [one for one in mounts.covers if _shows_the_same(one, cover)]
        if found:
            _unmount_in(pid, [one.mountpoint for one in found])


def _shows_the_same(one: Mount, cover: Mount) -> bool:
    return (one.device, one.root) == (cover.device, cover.root)


def _other_namespaces() -> Iterator[tuple[int, Mounts]]:
    """Yields one process of each other mount namespace, and its mounts."""
    seen = {os.readlink("/proc/self/ns/mnt")}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                namespace = os.readlink(f"/proc/{name}/ns/mnt")
                if namespace not in seen:
                    seen.add(namespace)
                    yield int(name), read_mounts(Path("/proc", name, "mountinfo"))


def _unmount_in(pid: int, paths: list[str]) -> None:
    try:
        _in_namespace(pid, functools.partial(_unmount_all, paths[::-1]))
    except OSError as err:
        log.warning("cannot uncover %s in the mounts of process %d: %s", paths[0], pid, err)


def _unmount_all(paths: Sequence[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for path in paths:
        if libc.umount2(os.fsencode(path), _MNT_DETACH | _NOFOLLOW):
            log.debug("%s: %s", path, os.strerror(ctypes.get_errno()))


def _in_namespace(pid: int, act: Callable[[], object]) -> None:
    """Calls `act` in a thread that has the mounts and the root of a process. Raises OSError."""
    failed: list[OSError] = []

    def run() -> None:
        try:
            _enter(pid)
            act()
        except OSError as err:
            failed.append(err)

    thread = threading.Thread(target=run, name="uncover-elsewhere", daemon=True)
    thread.start()
    thread.join(_LIMIT_S)
    if thread.is_alive():
        raise OSError(f"it takes more than {_LIMIT_S:g} s")
    if failed:
        raise failed[0]


def _enter(pid: int) -> None:
    """Moves this thread, alone, into the mount namespace and the root of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
    try:
        if libc.unshare(_CLONE_FS) or libc.setns(namespace, _CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.fchdir(root)
        os.chroot(".")
    finally:
        os.close(namespace)
        os.close(root)
