"""The pools of connections of this process. A server calls `close_idle` now and then: without that,
a source that nobody reads would keep the descriptors of its connections.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final, Protocol


class Pool(Protocol):
    """Connections that are kept for later requests."""

    def close_idle(self) -> None:
        """Closes those that were not used for a while. Waits for nothing."""


_lock: Final = threading.Lock()
_pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()


def register(pool: Pool) -> None:
    """Has `close_idle` look at a pool as long as the pool lives. Thread-safe."""
    with _lock:
        _pools.add(pool)


def close_idle() -> None:
    """Closes the connections that no request has used for a while. Thread-safe."""
    with _lock:
        pools = [*_pools]
    for pool in pools:
        pool.close_idle()
