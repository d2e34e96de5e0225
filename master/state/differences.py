"""The differences between one directory and its origin, as operators see them. Pure.

A change is reported against the stored names. In a directory that was listed, a new name at the
origin is reported as added. In one that was never listed, a new name is not a change. A file that
became a directory, or the reverse, has another order key: its removal and its insertion are one
replacement. The two keys are apart in the order (`a`, `a!`, `a/`), so a file's change waits until
its directory can no longer follow. At most 255 files wait (a name has no more prefixes).
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from cachefs.core.model import Kind
from cachefs.core.syncs import ChangeKind
from master.state.merge import Action, Change
from master.state.records import name_of

NAMES_TOGETHER: Final = 1000


class Difference(NamedTuple):
    kind: ChangeKind
    name: bytes
    is_directory: bool


class Differences:
    """The differences of one directory, from the changes of its parts in order."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[Action, bool]] = {}

    def add(
        self, changes: Iterable[Change], upto: bytes | None, *, was_listed: bool
    ) -> list[Difference]:
        """Returns the differences that are now certain. All order keys below `upto` have been
        compared; None: the whole directory has been."""
        found: list[Difference] = []
        for change in sorted(changes, key=_key):
            self._see(change, was_listed, found)
        for name in [*self._waiting]:
            if upto is None or name + b"/" <= upto:
                _end(self._waiting.pop(name), name, False, found)
        return found

    def _see(self, change: Change, was_listed: bool, found: list[Difference]) -> None:
        name, action = name_of(change.key), change.action
        if action is Action.REPLACE:
            found.append(Difference(ChangeKind.REPLACED, name, False))
        elif action is Action.UPDATE:
            return
        elif not change.key.endswith(b"/"):
            self._waiting[name] = (action, was_listed)
        else:
            twin = self._waiting.pop(name, None)
            if twin is None:
                _end((action, was_listed), name, True, found)
            elif twin[0] is not action:
                found.append(Difference(ChangeKind.REPLACED, name, action is Action.INSERT))
            else:
                _end(twin, name, False, found)
                _end((action, was_listed), name, True, found)


def _end(
    what: tuple[Action, bool], name: bytes, is_directory: bool, found: list[Difference]
) -> None:
    action, was_listed = what
    if action is Action.REMOVE:
        found.append(Difference(ChangeKind.GONE, name, is_directory))
    elif was_listed:
        found.append(Difference(ChangeKind.ADDED, name, is_directory))


def _key(change: Change) -> bytes:
    return change.key


def removed_directories(changes: Iterable[Change]) -> list[tuple[bytes, int]]:
    """Returns the (name, ino) of each removed directory; the names below it are removed as well."""
    return [
        (name_of(change.key), change.stored.inode.ino)
        for change in changes
        if change.action is Action.REMOVE
        and change.stored is not None
        and change.stored.inode.kind is Kind.DIRECTORY
    ]


class Subdirectories:
    """A queue of subdirectory names to compare, each with a mark; a million names take some MB."""

    def __init__(self) -> None:
        self._first: deque[tuple[bytes, bool]] = deque()
        self._packed: deque[bytes] = deque()
        self._last: list[tuple[bytes, bool]] = []

    def add(self, name: bytes, marked: bool) -> None:
        self._last.append((name, marked))
        if len(self._last) >= NAMES_TOGETHER:
            lines = b"/".join((b"+" if mark else b" ") + one for one, mark in self._last)
            self._packed.append(zlib.compress(lines, 1))
            self._last = []

    def pop(self) -> tuple[bytes, bool] | None:
        """Returns the next (name, mark); None when the queue is empty."""
        if not self._first and self._packed:
            lines = zlib.decompress(self._packed.popleft()).split(b"/")
            self._first.extend((line[1:], line[:1] == b"+") for line in lines)
        if not self._first:
            self._first.extend(self._last)
            self._last = []
        return self._first.popleft() if self._first else None
