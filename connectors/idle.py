"""The connection pools of this process. A server calls `close_idle` periodically; otherwise an
unused source would keep the descriptors of its connections.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final, Protocol


class Pool(Protocol):
    """Connections that are kept for later requests."""

    def close_idle(self) -> None:
        """Closes the connections that were idle for too long. Called by `close_idle` of this
        module; must not block."""


_lock: Final = threading.Lock()
_pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()


def register(pool: Pool) -> None:
    """Adds a pool for `close_idle`, by a weak reference. Thread-safe."""
    with _lock:
        _pools.add(pool)


def close_idle() -> None:
    """Closes the idle connections of every pool. Thread-safe."""
    with _lock:
        pools = [*_pools]
    for pool in pools:
        pool.close_idle()
