"""Whether this process reaches an origin, and is let in, judged by the ends of its requests. Pure.

A request that gets no reply, or fails for want of valid credentials, says so of this process. A
refusal (403) may be of one file: it says so of this process only if nothing was read from the
origin for `LATELY_S`. Other errors of the origin are replies, and change nothing here.
"""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import AccessDenied, CredentialsMissing, NotFound, Stale, Unreachable

LASTS_S: Final = 1.0  # shorter failures are those of a connection, not of the way to the origin
LATELY_S: Final = 60.0
TRY_S: Final = 5.0  # between the requests that try a way that was cut

_READ: Final = frozenset(("", NotFound.code, Stale.code))
_CUT: Final = frozenset((Unreachable.code, CredentialsMissing.code))
NEVER_S: Final = float("-inf")


class Reach:
    """The way from this process to one origin. Times are monotonic, in seconds. Any thread may call
    the methods: a race between two of them costs one wrong answer at most, until the next end."""

    def __init__(self) -> None:
        self._read_at_s = NEVER_S  # a reply to an authorized request arrived
        self._cut_since_s: float | None = None
        self._tried_at_s = NEVER_S

    def ended(self, error: str, began_s: float, now: float) -> None:
        """Records the end of a request; `error` is the code of its error, or ""."""
        if error in _READ:
            self._read_at_s, self._cut_since_s = now, None
            return
        from_s = began_s if error in _CUT else now - LATELY_S
        is_cut = error in _CUT or error == AccessDenied.code
        if is_cut and self._read_at_s < from_s and self._cut_since_s is None:
            self._cut_since_s = began_s

    @property
    def is_in_doubt(self) -> bool:
        """True if the last request failed because of this process, perhaps."""
        return self._cut_since_s is not None

    def is_cut(self, now: float) -> bool:
        """Returns whether all requests have failed for `LASTS_S` because of this process."""
        since_s = self._cut_since_s
        return since_s is not None and now - since_s >= LASTS_S

    def may_try(self, now: float) -> bool:
        """Returns whether to send a request now. Over a way that is cut one caller in `TRY_S` gets
        True."""
        if self.is_cut(now):
            if now - self._tried_at_s < TRY_S:
                return False
            self._tried_at_s = now
        return True


def no_requests(origin: object) -> Reach:
    """Returns the way to an origin to which no request was sent."""
    return Reach()
