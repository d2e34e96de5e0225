"""What is known of the reports about one source. Pure.

`since`: the store reports every change that was made since then; None: that is not known. Reports
are in progress for a while, and may end without notice. So names count as reported only while the
feed is up to date: while every report until `current_at` was handled, and that is not long ago.
"""

from __future__ import annotations

import msgspec


class FeedRecord(msgspec.Struct, frozen=True):
    """What a restart keeps of a feed. `push`: the setting that it is of."""

    push: str
    since: float
    current_at: float


class FeedState:
    """The state of one feed. Times are wall clock seconds."""

    def __init__(self) -> None:
        self.reported = 0  # names since the start
        self.reported_at = 0.0  # when the last one arrived
        self.current_at = 0.0
        self.error = ""
        self._since: float | None = None
        self._lost_at = 0.0

    def trusts_from(self, now: float) -> float:
        """Returns since when names will be trusted once the feed is up to date: from now on, unless
        some are already."""
        return now if self._since is None else self._since

    def names_reported(self, names: int, now: float) -> None:
        """Counts names that reports were about."""
        if names:
            self.reported += names
            self.reported_at = now

    def current(self, at: float) -> None:
        """Records that every report until `at` was handled, but for those that are lost."""
        self.current_at, self.error = at, ""
        if self._since is None:
            self._since = max(at, self._lost_at)

    def failed(self, error: str) -> None:
        """Records why the feed cannot be read. What was reported is still true."""
        self.error = error

    def lost(self, now: float) -> bool:
        """Records that reports may be lost. Returns whether names were trusted before."""
        was_trusted, self._since, self._lost_at = self._since is not None, None, now
        return was_trusted

    def since(self, now: float, valid_s: float) -> float | None:
        """Returns since when the store reports every change; None if the feed is not up to date:
        `valid_s` have passed since `current_at`, or the clock was set back."""
        return self._since if 0.0 <= now - self.current_at < valid_s else None

    def record(self, push: str) -> FeedRecord | None:
        """Returns what a restart keeps; None if nothing is trusted."""
        return None if self._since is None else FeedRecord(push, self._since, self.current_at)

    def restore(self, record: FeedRecord) -> None:
        """Trusts what was reported to an earlier process, once the feed is up to date again, but
        for what is lost."""
        self._since = max(record.since, self._lost_at)
