"""Whether programs open what is in trees of views, by inotify. Blocking: for threads of the
tier's disk.

Each directory of a watched tree has a watch, which ends with the first open in it. So a reader pays
for one event per directory between two looks, and its other opens cost what they cost without. The
worker opens directories of a tree before it watches the tree, or by descriptors that are no opens
(O_PATH).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from worker.store.inotify import Inotify, most_watches
from worker.store.view_records import DIRECTORY, name_of, split_name_key, view_key

if TYPE_CHECKING:
    from worker.store.index import Index

MOST_WATCHES: Final = 16_384  # of a tier; each takes about 1 KiB of kernel memory
SHARE_OF_USER: Final = 4  # and at most one of so many that the kernel allows the user
NAMES_AT_ONCE: Final = 1000
_PATH_ONLY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

TreePath = tuple[bytes, ...]


class CannotWatch(Exception):
    """The use of a tree cannot be seen, for a reason that an operator can change."""


@dataclass(slots=True)
class _WatchedTree:
    """`armed`: directories by the numbers of their watches. `ended`: of those that were opened."""

    armed: dict[int, TreePath] = field(default_factory=dict)
    ended: list[TreePath] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.armed) + len(self.ended)


class TreeWatches:
    """The watched trees of one tier, by the numbers of their views."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inotify: Inotify | None = None
        self._trees: dict[int, _WatchedTree] = {}

    def watch(self, views_fd: int, index: Index, view: int, most: int) -> None:
        """Watches all directories of a tree from now on. Raises CannotWatch, for one with more than
        `most` too; OSError."""
        self.forget(view)
        paths = _directories(index, view, most)  # takes long in a large tree
        with self._lock:
            room = _room() - sum(map(len, self._trees.values()))
            if len(paths) > room:
                raise CannotWatch(
                    f"it has {len(paths):,} directories, and {max(0, room):,} more can be watched: "
                    "raise fs.inotify.max_user_watches, or freeze it"
                )
            self._trees[view] = _WatchedTree(ended=paths)
            try:
                self._arm(views_fd, view)
            except BaseException:
                self._forget(view)
                raise

    def was_used(self, views_fd: int, view: int) -> bool:
        """Returns whether something in a watched tree was opened since the last call, or may have
        been, and arms the watches that have ended. Raises CannotWatch, OSError: its use is unknown
        from then on."""
        with self._lock:
            tree = self._trees.get(view)
            if tree is None:
                raise CannotWatch("it is not watched")
            self._take_events()
            used = bool(tree.ended)
            self._arm(views_fd, view)
            return used

    def forget(self, view: int) -> None:
        """Ends the watches of a tree, if it has any."""
        with self._lock:
            self._forget(view)

    def close(self) -> None:
        """Ends all watches. Idempotent."""
        with self._lock:
            self._trees.clear()
            self._close()

    # ---- with the lock ----

    def _take_events(self) -> None:
        """Moves the directories that were opened from `armed` to `ended`."""
        if self._inotify is None:
            return
        watches, lost = self._inotify.opens()
        for tree in self._trees.values():
            ended = [*tree.armed] if lost else [one for one in watches if one in tree.armed]
            tree.ended += [tree.armed.pop(one) for one in ended]

    def _arm(self, views_fd: int, view: int) -> None:
        tree = self._trees[view]
        if not tree.ended:
            return
        try:
            self._inotify = self._inotify or Inotify()
            top = os.open(f"{view:016x}", _PATH_ONLY, dir_fd=views_fd)
            try:
                while tree.ended:
                    tree.armed[self._armed(top, tree.ended[-1])] = tree.ended[-1]
                    tree.ended.pop()
            finally:
                os.close(top)
        except OSError as err:
            raise _typed(err) from err

    def _armed(self, top: int, path: TreePath) -> int:
        assert self._inotify is not None
        fd = _opened(top, path)
        try:
            return self._inotify.watch(fd)
        finally:
            os.close(fd)

    def _forget(self, view: int) -> None:
        tree = self._trees.pop(view, None)
        if tree is not None and not self._trees:
            self._close()
        elif tree is not None and self._inotify is not None:
            for watch in tree.armed:
                self._inotify.forget(watch)

    def _close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def _room() -> int:
    return min(MOST_WATCHES, most_watches() // SHARE_OF_USER)


def _typed(err: OSError) -> Exception:
    """Returns CannotWatch for an error that does not concern the tier's disk."""
    if err.errno == errno.ENOSPC:
        return CannotWatch("the kernel watches no more: raise fs.inotify.max_user_watches")
    if err.errno == errno.EMFILE:
        return CannotWatch("the kernel watches no more: raise fs.inotify.max_user_instances")
    return err


def _opened(top: int, path: TreePath) -> int:
    """Returns a descriptor (O_PATH) of a directory of a tree. A path may be too long for one call
    of the kernel."""
    fd = os.dup(top)
    for name in path:
        above = fd
        try:
            fd = os.open(name, _PATH_ONLY, dir_fd=above)
        finally:
            os.close(above)
    return fd


def _directories(index: Index, view: int, most: int) -> list[TreePath]:
    """Returns all directories of a tree, its top included. Raises CannotWatch for more than
    `most`, OSError."""
    parents: dict[int, tuple[int, bytes]] = {}
    after = head = view_key(view)
    while names := dict(index.scan_names(after, NAMES_AT_ONCE)):
        for full, record in names.items():
            if record.kind == DIRECTORY and full.startswith(head):
                _, parent, key = split_name_key(full)
                parents[record.ino] = parent, name_of(key)
        if len(parents) >= most:
            raise CannotWatch(f"it has more than {most:,} directories: freeze it")
        after = next(reversed(names))
        if not after.startswith(head):
            break
    return [(), *(_path(parents, ino) for ino in parents)]


def _path(parents: Mapping[int, tuple[int, bytes]], ino: int) -> TreePath:
    path: list[bytes] = []
    while (known := parents.get(ino)) is not None:
        ino, name = known
        path.append(name)
    return tuple(reversed(path))
