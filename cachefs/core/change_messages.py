"""The messages about changed folders, by which a list of names is refreshed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from cachefs.core.message import Message
from cachefs.core.model import NamespaceId

MOST_FOLDERS: Final = 10_000  # in one reply


class Invalidation(Protocol):
    """What an `Invalidate` has."""

    @property
    def entries(self) -> list[tuple[int, bytes]]: ...

    @property
    def everything(self) -> bool: ...


class GetChangedFolders(Message, frozen=True):
    """Requests the folders whose names changed after a position of the namespace's events
    (negative: none, only the position now). Answered by ChangedFolders."""

    namespace: NamespaceId
    after: int = -1


class ChangedFolders(Message, frozen=True):
    """Reply to GetChangedFolders. `position`: of the newest event. `folders`: inode numbers.
    `everything`: any folder may have changed, because the server no longer has all events, or there
    are more than `MOST_FOLDERS`. `run`: of the master's store; positions of two runs must not be
    compared (0: of a store whose positions continue)."""

    position: int
    folders: list[int]
    everything: bool = False
    run: int = 0


def changed_by(events: Iterable[Invalidation], position: int, run: int = 0) -> ChangedFolders:
    """Returns the reply for all events up to a position."""
    folders: set[int] = set()
    for event in events:
        folders.update(parent for parent, _ in event.entries)
        if event.everything or len(folders) > MOST_FOLDERS:
            return ChangedFolders(position, [], everything=True, run=run)
    return ChangedFolders(position, sorted(folders), run=run)
