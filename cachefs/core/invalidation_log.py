"""A bounded log of invalidated names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

_MAX_NOTED: Final = 32768


class InvalidationLog:
    """The positions of invalidations, which decide whether a reply is outdated when it arrives.
    `position` counts invalidations. A request notes it; the reply must not be cached if the name
    was invalidated later. A full log forgets all names, which then count as invalidated."""

    def __init__(self) -> None:
        self.position = 0
        self._floor = 0  # a request from before it is outdated, whatever the name
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
        """Returns whether this name was invalidated after position `asked_at`."""
        if asked_at == self.position:
            return False
        return asked_at < self._floor or self._names.get((parent, name), 0) > asked_at

    def since(self, asked_at: int, parent: int) -> Callable[[bytes], bool] | None:
        """Returns the test of `is_outdated` for names of a directory; None if no name of any
        directory was invalidated."""
        if asked_at == self.position:
            return None
        return functools.partial(self.is_outdated, asked_at, parent)
