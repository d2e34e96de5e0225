"""The contents that the master permits to evict, with their deadlines. Bounded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefs.core.model import ContentId
from cachefs.core.services import Permission
from cachefs.core.two_generation_map import TwoGenerationMap

KEPT: Final = 4096


class Permissions:
    """The permissions granted. Refusals are not kept: the next request may be granted."""

    def __init__(self) -> None:
        self._until: TwoGenerationMap[bytes, float] = TwoGenerationMap(KEPT)

    def unknown(self, contents: Sequence[ContentId], now: float, spare_s: float) -> list[ContentId]:
        """Returns the contents whose permission is missing or ends within `spare_s`."""
        until = self._until
        return [one for one in contents if (until.get(one.key) or 0.0) < now + spare_s]

    def put(self, contents: Sequence[ContentId], allowed: Sequence[bool], until: float) -> None:
        for content, flag in zip(contents, allowed, strict=True):
            if flag:
                self._until.put(content.key, until)
            else:
                self._until.drop(content.key)

    def of(self, contents: Sequence[ContentId], now: float) -> Permission:
        """Returns the contents that may be evicted, and how long that is valid for all of them."""
        until = {content.name: self._until.get(content.key) or 0.0 for content in contents}
        allowed = frozenset(name for name, at in until.items() if at > now)
        lasts_s = min((until[name] - now for name in allowed), default=0.0)
        return Permission(allowed, lasts_s)

    def clear(self) -> None:
        self._until.clear()
