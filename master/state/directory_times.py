"""Which directories changed, by the times of their last changes. Pure.

A time has a precision: a change that follows another one within it leaves the time as it is. So a
directory whose time changed is compared once more in the next round, which is later than that.

The clocks of the store and the master may differ by `SKEW_S`. A directory that is seen for the
first time needs no comparison if it changed longer than that before its names were listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

NS: Final = 10**9
SKEW_S: Final = 300.0


class Seen(NamedTuple):
    changed_ns: int
    settled: bool  # compared after a round that had this time


_CHANGED: Final = Seen(-1, settled=False)  # no directory has this time


class DirectoryTimes:
    """The directories of one source, by ino. Rounds of one feed, one after the other."""

    def __init__(self) -> None:
        self._kept: dict[int, Seen] = {}
        self._seen: dict[int, Seen] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def changed(self, ino: int, changed_ns: int, listed_at: float) -> bool:
        """Returns whether the names of the directory have to be compared. `listed_at`: since when
        all trusted names of the directory were compared, wall clock s."""
        known = self._kept.get(ino)
        if known is None:
            is_old = changed_ns < (listed_at - SKEW_S) * NS
            self._seen[ino] = Seen(changed_ns, settled=is_old)
            return not is_old
        same = known.changed_ns == changed_ns
        self._seen[ino] = Seen(changed_ns, settled=same)
        return not (same and known.settled)

    def end_round(self) -> None:
        """Forgets the directories that the round did not see."""
        self._kept, self._seen = self._seen, {}

    def abandon_round(self, not_marked: Iterable[int] = ()) -> None:
        """Keeps what a round saw that an error ended: the next one sees the rest. The directories
        `not_marked` have changed all the same."""
        self._kept |= self._seen | dict.fromkeys(not_marked, _CHANGED)
        self._seen = {}
