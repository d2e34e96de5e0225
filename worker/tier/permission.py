"""Requests for the master's permission to evict contents: pinned ones stay. Owned by the loop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from cachefs.core.errors import CacheFSError, NotFound
from cachefs.core.model import ContentId, NamespaceId
from worker.runtime.log_backoff import LogBackoff
from worker.runtime.tasks import within
from worker.tier.contents import Contents
from worker.tier.context import TierContext

log = logging.getLogger(__name__)

PERMISSION_WAIT_S: Final = 5.0


class Permitted(NamedTuple):
    """The master's answer: keys in the order of the request. `until_s` is the end of the
    permission (lasting clock). Keys without an answer are in neither list. `is_answered` False: the
    master did not answer for some of them."""

    allowed: list[bytes]
    refused: list[bytes]
    until_s: float
    is_answered: bool


class EvictionPermission:
    """The requests of one tier."""

    def __init__(self, context: TierContext, contents: Contents) -> None:
        self._context = context
        self._contents = contents
        self._pace = LogBackoff()  # of the warnings about missing answers

    async def request(self, keys: Sequence[bytes], limit_s: float = PERMISSION_WAIT_S) -> Permitted:
        """Returns which of the contents may be evicted. Waits at most `limit_s` per namespace."""
        by_namespace: dict[NamespaceId, list[ContentId]] = {}
        for key in keys:
            content = ContentId.of_key(key)
            by_namespace.setdefault(content.namespace, []).append(content)
        allowed: set[bytes] = set()
        refused: set[bytes] = set()
        until_s, is_answered = float("inf"), True
        for namespace, contents in by_namespace.items():
            sent_at_s = self._context.clocks.lasting()
            try:
                answer = await self._request(namespace, contents, limit_s)
            except (CacheFSError, TimeoutError) as err:
                is_answered = False
                self._note_failure(err)
                continue
            if answer is None:
                continue
            names, valid_for_s = answer
            for content in contents:
                (allowed if content.name in names else refused).add(content.key)
            if names:
                until_s = min(until_s, sent_at_s + valid_for_s)
        return Permitted(
            [key for key in keys if key in allowed],
            [key for key in keys if key in refused],
            until_s,
            is_answered,
        )

    async def _request(
        self, namespace: NamespaceId, contents: list[ContentId], limit_s: float
    ) -> tuple[frozenset[str], float] | None:
        """Returns (names of evictable contents, seconds for which that is valid), or None if the
        namespace's master is not known here. Raises CacheFSError, TimeoutError."""
        try:
            service = self._context.metadata(namespace)
        except NotFound:
            return self._detached(contents), PERMISSION_WAIT_S
        except CacheFSError:  # it may have pins
            return None
        permission = await within(service.permit_eviction(contents), limit_s)
        self._pace.over()
        return permission.allowed, permission.valid_for_s

    def _note_failure(self, err: Exception) -> None:
        self._context.counters.errors["permission"] += 1
        if self._pace.is_due(self._context.monotonic()):
            log.warning("nothing is evicted, the master gives no permission: %s", err)

    def _detached(self, contents: list[ContentId]) -> frozenset[str]:
        """Returns the evictable contents of a namespace that is not attached here."""
        config = self._context.config
        if not config.evict_detached:
            return frozenset()
        idle_before_s = self._context.wall() - config.idle_after_s
        return frozenset(
            content.name
            for content in contents
            if self._contents.last_use_s(content.key) <= idle_before_s
        )
