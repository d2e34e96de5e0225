"""The time of the last page from each source.

Readers wait longer for a slow source than for a silent one; `worker.server.request_deadlines`
distinguishes them by these times. Shared by the tiers of a node; belongs to the loop.
"""

from __future__ import annotations

import time
from typing import Final

from cachefs.core.model import NamespaceId, Origin

NEVER_S: Final = float("-inf")
MOST_SOURCES: Final = 4096  # at that number all times are dropped, since some sources are unmounted


class LastPageTimes:
    """The times, of `time.monotonic`. Only whole pages count, so a trickling body does not."""

    def __init__(self) -> None:
        self._last_s: dict[tuple[NamespaceId, str], float] = {}

    def came(self, origin: Origin) -> None:
        """Records a page of this file's source, from the origin or through a peer."""
        if len(self._last_s) >= MOST_SOURCES:
            self._last_s.clear()
        self._last_s[origin.content.namespace, origin.ufs] = time.monotonic()

    def last_s(self, origin: Origin | None) -> float:
        """Returns the time of the last page of this file's source; `NEVER_S` if there was none or
        the file is unknown."""
        if origin is None:
            return NEVER_S
        return self._last_s.get((origin.content.namespace, origin.ufs), NEVER_S)
