"""The room of one tier that large contents on their way there will take. Owned by the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from worker.tier.ledger import allocation

if TYPE_CHECKING:
    from worker.tier.catalog import Catalog
    from worker.tier.contents import Contents
    from worker.tier.context import TierContext

PROMISE_S: Final = 5.0  # between a content's being placed and its being opened


class _Promise(NamedTuple):
    size: int
    made_at_s: float


class Promises:
    """Promises by content key. One ends when its content is no longer being filled."""

    def __init__(self, context: TierContext, contents: Contents, catalog: Catalog) -> None:
        self._context = context
        self._contents = contents
        self._catalog = catalog
        self._made: dict[bytes, _Promise] = {}

    def add(self, key: bytes, size: int) -> None:
        """Promises room to a content of which nothing is here yet."""
        self.total_bytes()
        self._made[key] = _Promise(size, self._context.monotonic())

    def total_bytes(self) -> int:
        """Returns what the contents will still take, and forgets those that are not filled."""
        total_bytes = 0
        for key, promise in [*self._made.items()]:
            entry = self._catalog.live(key)
            if entry is not None and not entry.detached and not entry.complete:
                total_bytes += max(0, allocation(promise.size) - entry.allocated_bytes)
            elif entry is None and self._is_awaited(key, promise):
                total_bytes += allocation(promise.size)
            else:
                del self._made[key]
        return total_bytes

    def clear(self) -> None:
        self._made.clear()

    def _is_awaited(self, key: bytes, promise: _Promise) -> bool:
        if key in self._contents.order:
            return False  # it was here, and is not used now
        return self._context.monotonic() - promise.made_at_s < PROMISE_S
