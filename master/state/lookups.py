"""The choice between a `stat` of one name and a listing of its directory. Pure.

The first two unknown names of a directory within a window take a `stat` each. A third one suggests
that a client walks the directory, so one listing serves it and all later lookups. After a listing
was refused, the directory is not listed until the window ends.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

STATS_BEFORE_LISTING: Final = 2
WINDOW_S: Final = 60.0  # at most; also where the sync interval is -1
MAX_DIRECTORIES: Final = 10_000


@dataclass(slots=True)
class _Window:
    began_at: float
    stats: int = 0
    refused: bool = False


class LookupPolicy:
    """Counts recent stats per directory; remembers the last 10,000 directories."""

    def __init__(self) -> None:
        self._windows: OrderedDict[int, _Window] = OrderedDict()

    def wants_listing(self, directory: int, interval_s: float, now: float) -> bool:
        """Returns whether a lookup of an unknown name should list; counts a `stat` otherwise."""
        if interval_s == 0:
            return False
        window = self._window(directory, interval_s, now)
        if window.stats < STATS_BEFORE_LISTING or window.refused:
            window.stats += 1
            return False
        return True

    def listing_refused(self, directory: int, interval_s: float, now: float) -> None:
        """Records a failed listing: lookups use `stat` until the window ends."""
        self._window(directory, interval_s, now).refused = True

    def _window(self, directory: int, interval_s: float, now: float) -> _Window:
        length_s = min(interval_s, WINDOW_S) if interval_s > 0 else WINDOW_S
        window = self._windows.pop(directory, None)
        if window is None or not 0 <= now - window.began_at < length_s:
            window = _Window(now)
        self._windows[directory] = window
        if len(self._windows) > MAX_DIRECTORIES:
            self._windows.popitem(last=False)
        return window
