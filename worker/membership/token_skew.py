"""The moment in which the token of a cluster is replaced. Pure.

A node and its master read their token files every 2 s, at different times. In between the master
refuses the node's token, or the node presents the former one.
"""

from __future__ import annotations

from typing import Final

SKEW_S: Final = 5.0  # two times between looks at the file, and a little


class TokenSkew:
    """Whether refusals of the token may pass. Times are monotonic, in s."""

    def __init__(self) -> None:
        self._was_accepted = False
        self._refused_at: float | None = None  # the first time since

    def may_pass(self, now: float, *, is_refused: bool) -> bool:
        """Notes a reply. Returns True for a refusal after which the call is repeated: the master
        accepted the node's token a moment ago."""
        if not is_refused:
            self._was_accepted, self._refused_at = True, None
            return False
        if self._refused_at is None:
            self._refused_at = now
        return self._was_accepted and now - self._refused_at < SKEW_S
