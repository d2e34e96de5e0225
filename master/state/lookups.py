"""When a lookup asks for one name and when for the whole directory. Pure.

Two unknown names in a directory are worth a `stat` each; a third within the window means that
somebody walks it, and one listing then answers all. A directory that refused to be listed is left
alone for a window.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

STATS_BEFORE_LISTING: Final = 2
WINDOW_S: Final = 60.0  # where the interval itself is no window (-1), and at most
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
        """Decides for one lookup of an unknown name, and counts it."""
        if interval_s == 0:
            return False
        window = self._window(directory, interval_s, now)
        if window.stats < STATS_BEFORE_LISTING or window.refused:
            window.stats += 1
            return False
        return True

    def listing_refused(self, directory: int, interval_s: float, now: float) -> None:
        """A listing failed: answer by stats until the window ends."""
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
