"""Syncs on demand: the status of one, and the changes that it found. Pure."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

CHANGES_PER_REPLY: Final = 500
KEPT_CHANGES: Final = 100_000  # of one sync; further ones are only counted


class ChangeKind(enum.Enum):
    ADDED = "added"
    REPLACED = "replaced"  # the object has other bytes, or is of another kind
    GONE = "gone"


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A changed name, by its path below the namespace root. An added or removed directory is one
    change, and so is each file in it."""

    kind: ChangeKind
    path: bytes
    is_directory: bool = False


class SyncStatus(msgspec.Struct, frozen=True):
    """The status of a sync. `state`: running, done, stopped, or failed with `message`.
    `directories` and `names`: compared up to now. `errors`: directories that the origin could not
    list; `message` has the first. `kept`: the number of changes that can be requested, at most
    KEPT_CHANGES. `seq`: set at the end; events up to this position include all its changes."""

    sync: int
    state: str
    path: bytes
    recursive: bool = False
    dry_run: bool = False
    directories: int = 0
    names: int = 0
    added: int = 0
    replaced: int = 0
    gone: int = 0
    errors: int = 0
    elapsed_s: float = 0.0
    message: str = ""
    kept: int = 0
    seq: int = 0
