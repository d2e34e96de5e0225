"""How many names of each directory were reported lately. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

PERIOD_S: Final = 0.5  # reports of the present period and of the one before count
MOST_DIRECTORIES: Final = 10_000  # of a period, which then ends early


class RecentReports:
    """The reports of this period and of the one before it, by directory."""

    def __init__(self) -> None:
        self._present: Counter[int] = Counter()
        self._before: Mapping[int, int] = {}
        self._began = 0.0

    def add(self, directories: Iterable[int], now: float) -> None:
        """Counts one reported name for each of these directories."""
        passed_s = now - self._began
        if passed_s >= PERIOD_S or len(self._present) > MOST_DIRECTORIES:
            self._before = self._present if passed_s < 2 * PERIOD_S else {}
            self._present, self._began = Counter(), now
        self._present.update(directories)

    def crowded(self, directories: Iterable[int], least: int) -> Iterator[int]:
        """Yields those of the directories of which `least` names were reported."""
        for directory in {*directories}:
            if self._present[directory] + self._before.get(directory, 0) >= least:
                yield directory
