"""Which names were invalidated since when: what keeps an answer that was under way meanwhile from
being kept. Bounded; what was forgotten counts as invalidated.
"""

from __future__ import annotations

from typing import Final

_MAX_NOTED: Final = 32768


class Noted:
    """Which names were invalidated since when: an answer asked for before must not be kept.

    `position` counts invalidations; an answer carries the position at which it was asked for.
    """

    def __init__(self) -> None:
        self.position = 0
        self._floor = 0  # all that is older is not told apart any more
        self._names: dict[tuple[int, bytes], int] = {}

    def note(self, parent: int, name: bytes) -> None:
        self.position += 1
        if len(self._names) >= _MAX_NOTED:
            self.note_everything()
        self._names[parent, name] = self.position

    def note_everything(self) -> None:
        self.position += 1
        self._floor = self.position
        self._names.clear()

    def is_outdated(self, asked_at: int, parent: int, name: bytes) -> bool:
        """Was this name invalidated after position `asked_at`?"""
        if asked_at == self.position:
            return False
        return asked_at < self._floor or self._names.get((parent, name), 0) > asked_at
