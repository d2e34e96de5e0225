"""When pages of each source came to this node last.

Readers wait longer for a source that is slow than for one that is silent: `worker.server.patience`
asks here which of the two a source is. Shared by the tiers of a node; belongs to the loop.
"""

from __future__ import annotations

import time
from typing import Final

from cachefs.core.model import NamespaceId, Origin

NEVER_S: Final = float("-inf")
MOST_SOURCES: Final = 4096  # those that no mount has any more are dropped when there are so many


class Arrivals:
    """Counts whole pages only: a body that drips brings none. Times are of `time.monotonic`."""

    def __init__(self) -> None:
        self._last_s: dict[tuple[NamespaceId, str], float] = {}

    def came(self, origin: Origin) -> None:
        """Notes a page of the source of this file, from the origin or by way of a peer."""
        if len(self._last_s) >= MOST_SOURCES:
            self._last_s.clear()
        self._last_s[origin.content.namespace, origin.ufs] = time.monotonic()

    def last_s(self, origin: Origin | None) -> float:
        """Returns when a page of the source of this file came; `NEVER_S` where none did, or the
        file is not known."""
        if origin is None:
            return NEVER_S
        return self._last_s.get((origin.content.namespace, origin.ufs), NEVER_S)
