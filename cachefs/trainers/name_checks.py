"""Has the server compare the names of known folders with the origin, as a listing by a program does
where they are older than the sync interval. The server's events then name the folders that changed.
"""

from __future__ import annotations

import collections
import itertools
import logging
import math
from collections.abc import Iterator
from typing import Final

from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, NotADirectory, NotFound, Stale
from cachefs.trainers.mount_session import MountSession

log = logging.getLogger(__name__)

IN_FLIGHT: Final = 64
MOST_S: Final = 3600.0  # a clock that was set back must not delay a comparison for longer
_FIRST: Final = b""
_PAST_ALL: Final = b"\xff" * 64  # sorts behind every name


def is_due(due_at_s: float, now_s: float) -> bool:
    """Returns whether names that the server took for current until a time of the wall clock may be
    older than the sync interval."""
    return not now_s < due_at_s <= now_s + MOST_S


def compare_names(session: MountSession, folders: Iterator[int]) -> float:
    """Compares the names in folders, by their inode numbers. Returns for how long all of them are
    current. Where the origin does not answer, logs the cause and returns 0: the known names are
    used. Raises Unreachable when the server ends."""
    checks = NameChecks(session)
    try:
        checks.run(folders)
    except CacheFSError as err:
        if session.is_over:
            raise
        log.warning(
            "names of %s cannot be compared with the origin, those known before are used: %s",
            session.place.shown, err.one_line(),
        )  # fmt: skip
        return 0.0
    return min(checks.valid_for_s, MOST_S)


class NameChecks:
    """The requests of one comparison. A request for the first name of a folder makes the server
    list it if that is due; one for the names behind all others waits for the end of this list."""

    def __init__(self, session: MountSession) -> None:
        self.valid_for_s = math.inf
        self._session = session
        self._waiting: collections.deque[tuple[int, int, bytes]] = collections.deque()

    def run(self, folders: Iterator[int]) -> None:
        """Returns when all folders were compared. Skips those that are gone: the folder above has
        changed, too. Raises the errors of the server and of the origin."""
        while True:
            for ino in itertools.islice(folders, max(0, IN_FLIGHT - len(self._waiting))):
                self._request(ino, _FIRST)
            if not self._waiting:
                return
            id, ino, after = self._waiting.popleft()
            try:
                page = self._session.reply_to(id, m.Listing)
            except (NotFound, NotADirectory, Stale):
                continue
            if after == _FIRST:
                self.valid_for_s = min(self.valid_for_s, page.valid_for_s)
                if page.next:
                    self._request(ino, _PAST_ALL)

    def _request(self, ino: int, after: bytes) -> None:
        id = self._session.send(m.ListDir(self._session.namespace, ino, after, 1))
        self._waiting.append((id, ino, after))
