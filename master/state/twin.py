"""A second process with the id of a worker: its tiers are a copy of the worker's. Pure.

A process that has ended may leave one heartbeat on its way, which arrives after the registration of
its successor at another address. So a twin is one that was heard several times.
"""

from __future__ import annotations

from typing import Final

TWIN_BEATS: Final = 3


class Twin:
    """The heartbeats under the id of one worker that come from another address than its own."""

    def __init__(self) -> None:
        self._url = ""
        self._beats = 0
        self._heard_at = 0.0

    def hear(self, url: str, now: float) -> bool:
        """Notes a heartbeat; returns whether it is the first one that proves a twin."""
        self._beats = self._beats + 1 if url == self._url else 1
        self._url, self._heard_at = url, now
        return self._beats == TWIN_BEATS

    def url_now(self, now: float, within_s: float) -> str:
        """Returns the address of the twin, "" without one that was heard within a time."""
        is_there = self._beats >= TWIN_BEATS and now - self._heard_at < within_s
        return self._url if is_there else ""
