"""The mounts that show the tree of a view, as the kernel has them.

A worker that was started again does not know which mounts its predecessor had covered, and a client
may not answer. The kernel knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from typing import Final

from cachefs.core.mount_namespaces import (
    MountNamespace,
    call_in,
    detach,
    namespaces,
    opened_root,
    sees_all,
)
from cachefs.core.mountinfo import Mount

log = logging.getLogger(__name__)

_ROUNDS: Final = 2  # a removal in one namespace may remove, or uncover, one in another


class TreeShown(enum.Enum):
    """Whether a mount shows a tree."""

    NOWHERE = "nowhere"
    SOMEWHERE = "somewhere"
    UNKNOWN = "unknown"  # the mounts, or those of other users' processes, cannot be read


class TreeMounts:
    """See the module. `tree`: the number of a tree, which no other tree of the machine has."""

    async def look(self, tree: int) -> TreeShown:
        """Returns whether a mount shows (a part of) the tree."""
        return await asyncio.to_thread(_look, tree)

    async def remove(self, tree: int) -> None:
        """Unmounts the covers that show the tree, in every mount namespace. A bind mount that a
        user made of a covered directory stays."""
        await asyncio.to_thread(_remove, tree)


def _look(tree: int) -> TreeShown:
    try:
        for one in namespaces(needs_all=True):
            if any(_shows(mount, tree) for mount in [*one.mounts, *one.mounts.covers]):
                return TreeShown.SOMEWHERE
        return TreeShown.NOWHERE if sees_all() else TreeShown.UNKNOWN
    except OSError as err:
        log.warning("the mounts of this machine cannot be read: %s", err)
        return TreeShown.UNKNOWN


def _shows(mount: Mount, tree: int) -> bool:
    return f"/views/{tree:016x}/" in f"{mount.root}/"


def _remove(tree: int) -> None:
    try:
        for _ in range(_ROUNDS):
            for namespace in namespaces(needs_all=True):
                for cover in reversed(namespace.mounts.covers):
                    if _shows(cover, tree):
                        _detach(namespace, cover)
    except OSError as err:
        log.warning("covers of a tree may stay, the mounts cannot be read: %s", err)


def _detach(namespace: MountNamespace, cover: Mount) -> None:
    def act(proc: int) -> None:
        # The cover may have ended by now.
        with contextlib.suppress(FileNotFoundError), opened_root(cover, proc) as root:
            detach(root, proc)

    try:
        call_in(namespace, act)
    except OSError as err:
        log.warning("cannot remove the cover at %s: %s", cover.mountpoint, err)
