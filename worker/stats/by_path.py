"""The use of files by directory: counts of opens and bytes under the top-level directories of
sources. Pure.

Fetched bytes are counted exactly, since the fetch knows the path. Opens of published files by
clients are known by content only. At the end of each period the paths of a sample are looked up,
and each stands for its share of the opens. So a warm open costs nothing, and `hits` are an
estimate. Opens are counted at the end of their period; `recent_…` are those of the last one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cachefs.core.model import Origin

MOST_PATHS: Final = 64
OTHER: Final = "(other)"  # all paths beyond these
SAMPLE: Final = 64  # of opens, in each period

PERIOD_S: Final = 5.0
OPENS: Final = ("hits", "misses")
FIELDS: Final = (*OPENS, "origin_bytes", "peer_bytes")


def label_of(origin: Origin) -> str:
    """Returns the source, and the first directory of the file's path in it."""
    first, slash, _ = origin.path.partition(b"/")
    return _label(origin.ufs, first if slash else b"")


@functools.lru_cache(maxsize=1024)
def _label(ufs: str, first: bytes) -> str:
    return f"{_url(ufs)}/{first.decode('utf-8', 'backslashreplace')}"


def url_of(origin: Origin) -> str:
    return _url(origin.ufs)


def _url(ufs: str) -> str:
    return ufs.partition("|")[0]


class Period(NamedTuple):
    """The opens of a period: a sample of contents' names, the number of opens that it stands for,
    and the opens with a known path."""

    sample: list[str]
    seen: int
    opens: dict[str, dict[str, int]]


class PathTally:
    """The counts, and the sample of this period. `rng(n)` is uniform among 0 to n - 1."""

    def __init__(self, rng: Callable[[int], int]) -> None:
        self._rng = rng
        self._counts: dict[str, dict[str, int]] = {}
        self._recent: dict[str, dict[str, int]] = {}
        self._opens: dict[str, dict[str, int]] = {}  # of this period, with a known path
        self._sample: list[str] = []
        self._seen = 0  # opens of this period without a known path

    def hit(self, origin: Origin) -> None:
        self._open(self._opens, label_of(origin), "hits", 1)

    def missed(self, origin: Origin) -> None:
        self._open(self._opens, label_of(origin), "misses", 1)

    def brought(self, origin: Origin, origin_bytes: int, peer_bytes: int) -> None:
        label = label_of(origin)
        self._count(label, "origin_bytes", origin_bytes)
        self._count(label, "peer_bytes", peer_bytes)

    def used(self, names: Sequence[str]) -> None:
        """Records opens of published contents. The cost grows with the sample only."""
        room = SAMPLE - len(self._sample)
        self._sample += names[:room] if room else ()
        rest = names[room:] if room else names
        seen, self._seen = self._seen, self._seen + len(names)
        if not rest:
            return
        # Reservoir sampling: each place takes one of the rest with probability len(rest) / seen.
        for place in range(SAMPLE):
            drawn = self._rng(seen + len(names))
            if drawn < len(rest):
                self._sample[place] = rest[drawn]

    def take(self) -> Period:
        """Ends this period, returns it and begins the next one."""
        period = Period(self._sample, self._seen, self._opens)
        self._sample, self._seen, self._opens = [], 0, {}
        return period

    def settle(self, period: Period, origins: Sequence[Origin | None]) -> None:
        """Counts the opens of a period, by the origins of its sample (None: unknown by now). Each
        stands for an equal share."""
        seen, opens = period.seen, period.opens
        for n, origin in enumerate(origins):
            share = seen * (n + 1) // len(origins) - seen * n // len(origins)
            self._open(opens, OTHER if origin is None else label_of(origin), "hits", share)
        self._recent = {}
        for label, counts in opens.items():
            kept = self._label(label)
            for name, count in counts.items():
                self._count(kept, name, count)
                self._open(self._recent, kept, name, count)

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns copies of the counts, by path."""
        nothing = dict.fromkeys(OPENS, 0)
        return {
            label: {
                **counts,
                **{f"recent_{name}": self._recent.get(label, nothing)[name] for name in OPENS},
            }
            for label, counts in self._counts.items()
        }

    def _label(self, label: str) -> str:
        """Returns the label under which a path is counted; `OTHER` beyond `MOST_PATHS`."""
        return label if label in self._counts or len(self._counts) < MOST_PATHS else OTHER

    def _count(self, label: str, field: str, count: int) -> None:
        if count:
            _add(self._counts, self._label(label), FIELDS, field, count)

    @staticmethod
    def _open(opens: dict[str, dict[str, int]], label: str, field: str, count: int) -> None:
        if label not in opens and len(opens) >= MOST_PATHS:
            label = OTHER
        _add(opens, label, OPENS, field, count)


def _add(
    counts: dict[str, dict[str, int]], label: str, fields: Sequence[str], field: str, count: int
) -> None:
    of_label = counts.get(label)
    if of_label is None:
        of_label = counts[label] = dict.fromkeys(fields, 0)
    of_label[field] += count
