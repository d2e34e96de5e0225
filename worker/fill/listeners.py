"""Who hears of bytes that come of a content. Owned by the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from worker.tier.entry import Entry

Listener = Callable[[int], None]


class Listeners:
    """By content key; each is known while its `hearing` lasts."""

    def __init__(self) -> None:
        self._of: dict[bytes, list[Listener]] = {}

    @contextlib.contextmanager
    def hearing(self, key: bytes, listener: Listener) -> Iterator[None]:
        """`listener` gets the bytes of each request for that content that ends meanwhile."""
        here = self._of.setdefault(key, [])
        here.append(listener)
        try:
            yield
        finally:
            here.remove(listener)
            if not here:
                del self._of[key]

    def heard(self, entry: Entry, size_bytes: int) -> None:
        for listener in self._of.get(entry.key, ()):
            listener(size_bytes)
