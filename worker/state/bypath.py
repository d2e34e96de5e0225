"""How files are used, by directory: counts of opens and bytes under the top-level directories of
sources. Pure.

What is brought is counted as it is: who brings it knows its path. Opens that clients make by
themselves are known by content alone; a sample of them is looked up later, each for as many as it
stands for. So nothing is paid at a warm open, and `hits` are an estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cachefs.core.model import Origin

MOST_PATHS: Final = 64
OTHER: Final = "(other)"  # what came when there were so many
SAMPLE: Final = 32  # of opens, in each period

FIELDS: Final = ("hits", "misses", "origin_bytes", "peer_bytes")


def label_of(origin: Origin) -> str:
    """A source, and the first directory of a file's path in it."""
    first, slash, _ = origin.path.partition(b"/")
    return f"{url_of(origin)}/{first.decode('utf-8', 'backslashreplace') if slash else ''}"


def url_of(origin: Origin) -> str:
    return origin.ufs.partition("|")[0]


class PathTally:
    """The counts, and the sample. `rng(n)` is uniform among 0 to n - 1."""

    def __init__(self, rng: Callable[[int], int]) -> None:
        self._rng = rng
        self._counts: dict[str, dict[str, int]] = {}
        self._sample: list[str] = []
        self._seen = 0  # opens of this period

    def hit(self, origin: Origin) -> None:
        self._count(label_of(origin), "hits", 1)

    def missed(self, origin: Origin) -> None:
        self._count(label_of(origin), "misses", 1)

    def brought(self, origin: Origin, origin_bytes: int, peer_bytes: int) -> None:
        label = label_of(origin)
        self._count(label, "origin_bytes", origin_bytes)
        self._count(label, "peer_bytes", peer_bytes)

    def used(self, names: Sequence[str]) -> None:
        """Published contents that were opened. What this costs grows with the sample alone."""
        room = SAMPLE - len(self._sample)
        self._sample += names[:room] if room else ()
        rest = names[room:] if room else names
        seen, self._seen = self._seen, self._seen + len(names)
        if not rest:
            return
        # Each of the rest is in the sample with the chance SAMPLE / seen: so many of them, at
        # places of their own, stand for it.
        for place in range(SAMPLE):
            drawn = self._rng(seen + len(names))
            if drawn < len(rest):
                self._sample[place] = rest[drawn]

    def take(self) -> tuple[list[str], int]:
        """The sample of this period, and how many opens it stands for; a new period begins."""
        sample, seen = self._sample, self._seen
        self._sample, self._seen = [], 0
        return sample, seen

    def sampled(self, origins: Sequence[Origin | None], seen: int) -> None:
        """What became of a sample: those that are None are gone. Each stands for its share."""
        for n, origin in enumerate(origins):
            share = seen * (n + 1) // len(origins) - seen * n // len(origins)
            self._count(OTHER if origin is None else label_of(origin), "hits", share)

    def counts(self) -> dict[str, dict[str, int]]:
        """By path. Copies."""
        return {label: dict(counts) for label, counts in self._counts.items()}

    def _count(self, label: str, field: str, count: int) -> None:
        if not count:
            return
        counts = self._counts.get(label)
        if counts is None:
            if len(self._counts) >= MOST_PATHS:
                label = OTHER
            counts = self._counts.setdefault(label, dict.fromkeys(FIELDS, 0))
        counts[field] += count
