"""The origins whose bytes this node could not read lately, for operators. Pure.

The master probes each origin from its own machine. A worker may be cut off from an origin that the
master reaches, or lack credentials that the master has.
"""

from __future__ import annotations

from typing import Any, Final

from cachefs.core.errors import (
    CacheFSError,
    CredentialsMissing,
    DeadlineExceeded,
    Throttled,
    Unavailable,
    Unreachable,
)

WITHIN_S: Final = 60.0  # a failure that is older says nothing of now
MOST: Final = 64  # origins
_OF_ORIGIN: Final = (CredentialsMissing, DeadlineExceeded, Throttled, Unavailable, Unreachable)


class _Failure:
    def __init__(self, since_wall_s: float) -> None:
        self.since_wall_s = since_wall_s
        self.error: CacheFSError = Unreachable("")
        self.at_s = 0.0


class OriginFailures:
    """The last failure of each origin since which no byte of it has arrived. Times are monotonic,
    in s, but for the wall time of the first failure."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}

    def failed(self, url: str, error: CacheFSError, now: float, wall: float) -> None:
        """Records the end of a fill without its bytes. Errors of one file are left out."""
        if not isinstance(error, _OF_ORIGIN):
            return
        self._forget(now)
        if url in self._failures or len(self._failures) < MOST:
            failure = self._failures.setdefault(url, _Failure(wall))
            failure.error, failure.at_s = error, now

    def succeeded(self, url: str) -> None:
        """Records that bytes of an origin have arrived."""
        self._failures.pop(url, None)

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Returns plain values for `cachefs.core.health.SourceFacts`."""
        self._forget(now)
        return [
            {
                "url": url,
                "origin_down": True,
                "down_since_s": one.since_wall_s,
                "down_code": one.error.code,
                "down_cause": one.error.cause,
                "down_remedy": one.error.remedy,
            }
            for url, one in self._failures.items()
        ]

    def _forget(self, now: float) -> None:
        kept = {url: one for url, one in self._failures.items() if now - one.at_s < WITHIN_S}
        self._failures = kept
