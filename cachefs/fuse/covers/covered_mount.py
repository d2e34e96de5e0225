"""The covers of one mount as the kernel has them. Keeps no state: mountinfo is the truth, for a
successor, too.

All methods but `found` block: paths below the mount are resolved by the client that serves it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator

from cachefs.core.errors import InUse, Stale
from cachefs.core.mountinfo import Mount, read_mounts
from cachefs.fuse.covers import copies, mount_calls
from cachefs.fuse.covers.cover_records import CoverRecords, RecordedCover
from cachefs.fuse.covers.mount_calls import PATH_ONLY, MountFlags
from cachefs.fuse.covers.place import Place


class CoveredMount:
    """The mount of `device` (major:minor; "": none yet) at `mountpoint`."""

    def __init__(self, mountpoint: str, device: str, records: CoverRecords) -> None:
        self._mountpoint = mountpoint
        self._records = records
        self.device = device

    def found(self) -> dict[int, Mount]:
        """Returns the recorded covers by number, none if the mount was removed or another one lies
        over it."""
        _, covers = self._read()
        return self._numbered(covers)

    def is_there(self) -> bool:
        return self._read()[0] is not None

    def is_root(self, cover: Mount) -> bool:
        """Returns whether a cover lies over the root of the mount."""
        return cover.mountpoint == self._mountpoint

    def lay(
        self, number: int, tree: int, place: Place, ino: int, has_order: Callable[[int], bool]
    ) -> None:
        """Covers a directory with (a part of) the tree that is open as `tree`, unless this cover is
        there already. Closes `tree`. Raises Stale if another directory is at that place, or a later
        order about the cover waits (`has_order`); InUse if another mount is there; OSError."""
        with _closing(tree):
            self._lay(number, tree, place, ino, has_order)

    def _lay(
        self, number: int, tree: int, place: Place, ino: int, has_order: Callable[[int], bool]
    ) -> None:
        mount, covers = self._read()
        if mount is None:
            raise InUse("another mount lies over it", path=self._mountpoint)
        if number in self._numbered(covers):
            return
        path = os.path.join(self._mountpoint, os.fsdecode(place.inside)).rstrip("/")
        if any(f"{cover.mountpoint}/".startswith(f"{path}/") for cover in covers):
            raise InUse("a directory at or below it is covered", path=path)
        if any(one.device != self.device for one in read_mounts().below(path)):
            raise InUse("another mount is below it", path=path)
        with contextlib.ExitStack() as stack:
            root = stack.enter_context(_closing(self._open_root(mount)))
            target = stack.enter_context(_closing(mount_calls.open_below(root, place.inside)))
            if place.inside and os.fstat(target).st_ino != ino:
                raise Stale("another directory is at that path")
            part = stack.enter_context(_closing(mount_calls.open_below(tree, place.part)))
            flags = MountFlags(mount.flags)
            clone = stack.enter_context(_closing(mount_calls.clone_read_only(part, flags)))
            self._records.put(RecordedCover(number, mount_calls.mount_id(clone)))
            if has_order(number):  # resolving the path may have taken long
                raise Stale("the order was withdrawn")
            mount_calls.attach(clone, target)

    def remove(self, number: int) -> None:
        """Uncovers, in all mount namespaces. Does nothing without such a cover. Raises InUse if the
        cover is still there."""
        cover = self.found().get(number)
        if cover is not None:
            self._remove(cover)
        with contextlib.suppress(OSError):  # a record without a mount does no harm
            self._records.drop(number)

    def look_up(self) -> None:
        """Resolves the paths of the covers below the root. The kernel removes a cover if it does
        not trust a name on the path any more. Raises OSError."""
        for cover in self.found().values():
            if not self.is_root(cover):
                os.close(os.open(cover.mountpoint, PATH_ONLY | os.O_NOFOLLOW))

    def has_unknown(self) -> bool:
        return bool(self._unknown())

    def remove_unknown(self) -> None:
        """Removes covers without a record. Raises as `remove`."""
        for cover in reversed(self._unknown()):
            self._remove(cover)

    def _unknown(self) -> list[Mount]:
        covers = self._read()[1]
        known = {cover.mount_id for cover in self._numbered(covers).values()}
        return [cover for cover in covers if cover.mount_id not in known]

    def _remove(self, cover: Mount) -> None:
        self._detach(cover)
        if any(one.mount_id == cover.mount_id for one in self._read()[1]):
            raise InUse("another mount lies over the cover", path=self._mountpoint)
        copies.remove(cover, self.device, functools.partial(self._clone_below, cover))

    def _clone_below(self, cover: Mount, below: bytes, flags: MountFlags) -> int:
        """Returns a new mount of what this mount shows at a path below a cover that is gone. Raises
        OSError, InUse."""
        mount, _ = self._read()
        if mount is None:
            raise InUse("another mount lies over it", path=self._mountpoint)
        inside = os.fsencode(cover.mountpoint[len(self._mountpoint) :].strip("/"))
        with _closing(self._open_root(mount)) as root:
            path = b"/".join(part for part in (inside, below) if part)
            with _closing(mount_calls.open_below(root, path, any_kind=True)) as found:
                return mount_calls.clone_read_only(found, flags)

    def _numbered(self, covers: list[Mount]) -> dict[int, Mount]:
        by_id = {cover.mount_id: cover for cover in covers}
        return {
            record.number: by_id[record.mount_id]
            for record in self._records.read()
            if record.mount_id in by_id
        }

    def _detach(self, cover: Mount) -> None:
        """Unmounts a cover, unless the kernel has done so by now."""
        with contextlib.suppress(OSError):
            root = os.open(cover.mountpoint, PATH_ONLY | os.O_NOFOLLOW)
            with _closing(root):
                if mount_calls.mount_id(root) == cover.mount_id:
                    mount_calls.detach(root)

    def _open_root(self, mount: Mount) -> int:
        """Returns a descriptor of the root of the mount. Raises InUse if it is covered."""
        root = os.open(self._mountpoint, PATH_ONLY | os.O_NOFOLLOW)
        if mount_calls.mount_id(root) != mount.mount_id:
            os.close(root)
            raise InUse("the whole mount is covered", path=self._mountpoint)
        return root

    def _read(self) -> tuple[Mount | None, list[Mount]]:
        """Returns the mount, None if it is not on top of its mount point, and its covers."""
        mounts = read_mounts()
        mount = mounts.at(self._mountpoint)
        if mount is None or mount.device != self.device:
            return None, []
        return mount, mounts.covers_of(mount)


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
