"""Syncs on demand: what is shown of one, and the changes that it found. Pure."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

CHANGES_PER_REPLY: Final = 500
KEPT_CHANGES: Final = 100_000  # of one sync; further ones are counted only


class ChangeKind(enum.Enum):
    ADDED = "added"
    REPLACED = "replaced"  # the object has other bytes, or is of another kind
    GONE = "gone"


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name, by its path below the namespace root. A directory that came or went is one change,
    and so is each file in it."""

    kind: ChangeKind
    path: bytes
    is_directory: bool = False


class SyncShown(msgspec.Struct, frozen=True):
    """`state`: running, done, stopped, or failed with `message`. `directories` and `names`:
    compared so far; what the origin could not list is counted in `errors`, the first is in
    `message`. `kept`: so many changes can be asked for, fewer than were found where there are very
    many. `seq`: once it ended, who knows the namespace's events up to that position knows what it
    changed."""

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
