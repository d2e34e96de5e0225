"""Demotion: copies contents that are about to be evicted, and were used, to a slower tier. Owned by
the loop.

Fills that need room do not wait for a slow tier. Slow copies continue without the eviction lock,
and their contents are evicted afterwards. Other contents are evicted meantime without a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from worker.runtime.log_backoff import LogBackoff
from worker.runtime.tasks import within
from worker.tier.contents import Contents
from worker.tier.context import TierContext

log = logging.getLogger(__name__)

WAIT_S: Final = 0.4  # of a caller that needs room
COPY_LIMIT_S: Final = 60.0  # for one batch

Copy = Callable[[Sequence[bytes], int], Awaitable[None]]
Then = Callable[[Mapping[bytes, int]], Coroutine[Any, Any, None]]


class Demotion:
    """The demotions of a tier, one batch at a time. `copying`: the contents of a slow batch, and
    their last uses before it; they must not be evicted yet."""

    def __init__(self, context: TierContext, contents: Contents) -> None:
        self._context = context
        self._contents = contents
        self._pace = LogBackoff()
        self.copying: dict[bytes, int] = {}
        # `copy(keys, need_bytes)` copies contents to a slower tier; None: there is none
        self.copy_below: Copy | None = None

    async def offer(self, keys: Sequence[bytes], short_bytes: int, then: Then) -> None:
        """Copies those of `keys` that were used. Returns when that is done, or after `WAIT_S`: then
        the rest continues, and `then(copying)` runs at its end. Cancelled: as after `WAIT_S`."""
        order = self._contents.order
        used = {key: order.last_use_s(key) for key in keys if key in order and order.was_used(key)}
        if self.copy_below is None or not used or self.copying:
            return
        batch = self._context.tasks.start(self._copy(self.copy_below([*used], short_bytes)))
        self.copying = used
        try:
            await asyncio.wait([batch], timeout=WAIT_S)
        finally:
            if batch.done():
                self.copying = {}
                self._pace.over()
            else:
                self._context.tasks.start(self._end(batch, then))
        if self.copying and self._pace.is_due(self._context.monotonic()):
            log.warning(
                "the next tier is slow: files that make room leave without a copy there meanwhile"
            )

    async def _copy(self, offer: Awaitable[None]) -> None:
        with contextlib.suppress(TimeoutError):
            await within(offer, COPY_LIMIT_S)

    async def _end(self, batch: asyncio.Task[None], then: Then) -> None:
        await asyncio.wait([batch])
        copied, self.copying = self.copying, {}
        await then(copied)
