"""What else shows the tree of a cover that was removed: copies, and bind mounts of users.

A mount namespace that was made while a directory was covered has a copy of the cover, and keeps it
unless its mounts follow ours; so has a recursive bind mount. The copy is unmounted there. A bind
mount of a covered directory (a volume of a container) shows the tree and nothing else. It is
replaced by a clone of the mount's own directory, which is mounted beneath it before it is detached:
its path always shows one of the two. Kernels before 6.5 cannot do that. There the clone is mounted
over it.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from typing import Final

from cachefs.core.errors import InUse
from cachefs.core.mount_namespaces import (
    MountNamespace,
    call_in,
    detach,
    namespaces,
    opened_root,
)
from cachefs.core.mountinfo import Mount, Mounts
from cachefs.fuse.covers import mount_calls
from cachefs.fuse.covers.mount_calls import MountFlags

log = logging.getLogger(__name__)

_ROUNDS: Final = 3  # a container may be started in between
_DELETED: Final = "//deleted"

# Returns the descriptor of a new mount of what the CacheFS mount shows at a path below the cover.
Clone = Callable[[bytes, MountFlags], int]


def remove(cover: Mount, device: str, clone: Clone) -> None:
    """Removes the copies of a removed cover of the CacheFS mount of `device`, and replaces the bind
    mounts of what it showed. Logs what stays: the server then empties the tree."""
    for _ in range(_ROUNDS):
        found = [_remove_in(namespace, cover, device, clone) for namespace in namespaces()]
        if not any(found):
            return


def _remove_in(namespace: MountNamespace, cover: Mount, device: str, clone: Clone) -> bool:
    """Returns whether mounts were removed or replaced."""
    done = [_detach(namespace, copy) for copy in [*_copies(namespace, cover, device)][::-1]]
    for bind in [*_binds(namespace.mounts, cover)][::-1]:
        below = os.fsencode(bind.root[len(cover.root) :].strip("/"))
        done.append(_replace(namespace, bind, below, clone))
    return any(done)


def _copies(namespace: MountNamespace, cover: Mount, device: str) -> Iterator[Mount]:
    """Yields the copies in a namespace. Other mounts may have covers of the same tree."""
    for one in namespace.mounts.covers:
        beneath = namespace.mounts.beneath(one)
        is_ours = beneath is not None and beneath.device == device
        if is_ours and (one.device, one.root) == (cover.device, cover.root):
            yield one


def _binds(mounts: Mounts, cover: Mount) -> Iterator[Mount]:
    """Yields the bind mounts of (a part of) what the cover showed, but for hidden ones."""
    for one in mounts:
        is_part = one.device == cover.device and f"{one.root}/".startswith(f"{cover.root}/")
        if is_part and not one.root.endswith(_DELETED) and not mounts.is_hidden(one):
            yield one


def _detach(namespace: MountNamespace, copy: Mount) -> bool:
    def act(proc: int) -> None:
        with opened_root(copy, proc) as root:
            detach(root, proc)

    return _try(namespace, copy, act)


def _replace(namespace: MountNamespace, bind: Mount, below: bytes, clone: Clone) -> bool:
    if namespace.mounts.below(bind.mountpoint):  # which it would take with it
        log.warning("%s cannot be replaced: other mounts are below it", bind.mountpoint)
        return False

    def act(proc: int) -> None:
        with opened_root(bind, proc) as root:
            if _put(made, root):
                detach(root, proc)

    try:
        made = clone(below, MountFlags(bind.flags))
    except (OSError, InUse) as err:
        log.warning("the bind mount %s cannot be replaced: %s", bind.mountpoint, err)
        return False
    return _try(namespace, bind, act, lambda: os.close(made))


def _put(made: int, root: int) -> bool:
    """Mounts a clone beneath a mount, or over it if the kernel cannot do that (returns False)."""
    try:
        mount_calls.attach(made, root, beneath=True)
        return True
    except OSError as err:
        if err.errno != errno.EINVAL:
            raise
    mount_calls.attach(made, root)
    return False


def _try(
    namespace: MountNamespace,
    mount: Mount,
    act: Callable[[int], None],
    ended: Callable[[], None] = lambda: None,
) -> bool:
    try:
        call_in(namespace, act, ended)
        return True
    except FileNotFoundError:  # it was removed
        return False
    except OSError as err:
        where = "" if namespace.is_own else f" in the mounts of process {namespace.pid}"
        log.warning("%s%s still shows the tree of a view: %s", mount.mountpoint, where, err)
        return False
