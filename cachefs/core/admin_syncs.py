"""The bodies of the admin API about syncs. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from cachefs.core import messages as m
from cachefs.core.admin import Answer, Request, same_fields
from cachefs.core.admin_paths import PathText, bytes_of, text_of
from cachefs.core.syncs import Change, ChangeKind, SyncStatus


class NewSync(Request, frozen=True):
    """A path to compare with its origin, `recursive` with all below it. `dry_run`: only report."""

    path: PathText
    recursive: bool = False
    dry_run: bool = False


class ChangedName(Answer, frozen=True):
    kind: ChangeKind
    path: PathText
    is_directory: bool = False


class Sync(Answer, frozen=True):
    """A sync on demand. `state`: running, done, stopped, or failed with `message`. `changes`: from
    the requested index on. `next`: the index after them; null at the end. `kept`: the number of
    changes that can be requested. `seq`: the event position that includes all its changes."""

    sync: int
    state: str
    path: PathText
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
    changes: list[ChangedName] = msgspec.field(default_factory=list)
    next: str | None = None

    @classmethod
    def of(cls, reply: m.SyncReply, after: int) -> Sync:
        shown, changes = reply.sync, reply.changes
        same = same_fields(shown, _SAME_OF_SYNCS)
        is_over = shown.state != "running" and not changes
        return cls(
            path=text_of(shown.path),
            changes=[ChangedName(one.kind, text_of(one.path), one.is_directory) for one in changes],
            next=None if is_over else str(after + len(changes)),
            **same,
        )

    def reply(self) -> m.SyncReply:
        same = same_fields(self, _SAME_OF_SYNCS)
        changes = [Change(one.kind, bytes_of(one.path), one.is_directory) for one in self.changes]
        return m.SyncReply(SyncStatus(path=bytes_of(self.path), **same), changes)


_SAME_OF_SYNCS: Final = tuple(
    name for name in Sync.__struct_fields__ if name not in ("path", "changes", "next")
)
