"""When a Dataset is read from the API server, although a watch has shown it. Pure.

A watch that began before the definition of Datasets changed shows objects by the former definition:
without the fields that this did not know. The API server may keep such a watch for minutes, and the
next watch continues after the last object of the former one.
"""

from __future__ import annotations

from typing import Final

from cachefs.kube.dataset import Dataset
from cachefs.kube.names import Key

AGAIN_S: Final = 600.0  # a Dataset with nothing to do is read again: its end may be missed


class Readings:
    """The generation of each Dataset that was read, and when."""

    def __init__(self) -> None:
        self._read: dict[Key, tuple[str, int, float]] = {}

    def is_due(self, dataset: Dataset, now: float) -> bool:
        """Returns whether this generation was not read yet, or `AGAIN_S` ago."""
        found = self._read.get(dataset.key)
        if found is None:
            return True
        uid, generation, at = found
        return (uid, generation) != (dataset.uid, dataset.generation) or now - at >= AGAIN_S

    def add(self, dataset: Dataset, now: float) -> None:
        self._read[dataset.key] = (dataset.uid, dataset.generation, now)

    def drop(self, key: Key) -> None:
        self._read.pop(key, None)
