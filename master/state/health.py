"""The health of an origin: errors, and probes while it is down. Pure.

While the origin is down, the master serves known names from its store, and one caller per
`PROBE_EVERY_S` probes the origin. A request for an unknown name is always sent to the origin.
"""

from __future__ import annotations

from typing import Any, Final

from cachefs.core.errors import CacheFSError, CredentialsMissing, DeadlineExceeded

PROBE_EVERY_S: Final = 5.0
WARN_EVERY_S: Final = 30.0


def is_down(err: CacheFSError) -> bool:
    """Returns True for errors that do not concern the name: the origin could not reply now, or
    the master had no valid credentials. A refusal of valid credentials is a reply."""
    return err.retryable or isinstance(err, (DeadlineExceeded, CredentialsMissing))


class OriginHealth:
    """The state of an origin: up, or down since some error. Times are wall seconds. `was_asked`:
    True if the origin received a request since the last probe cleared the flag."""

    def __init__(self) -> None:
        self.errors = 0
        self.last_warning = ""
        self.current_warning = ""  # cleared by the next success
        self.down_since = 0.0
        self.down_error: CacheFSError | None = None  # the last one
        self.was_asked = False
        self._trouble: CacheFSError | None = None  # result of the last probe; changes no reply
        self._trouble_since = 0.0
        self.down = False
        self._asked_at = 0.0
        self._warned_at = 0.0

    @property
    def error(self) -> CacheFSError | None:
        """The error that marked it down, or else the last probe's; None if the origin is well."""
        return self.down_error or self._trouble

    def succeeded(self) -> None:
        self.current_warning = ""
        self.down, self.was_asked = False, True
        self.down_error = self._trouble = None

    def failed(self, err: CacheFSError, now: float) -> None:
        self.errors += 1
        self.was_asked = True
        if is_down(err):
            self.down_since = self.down_since if self.down else now
            self.down_error = err
            self.down = True
            self._asked_at = now

    def troubled(self, err: CacheFSError, now: float) -> None:
        """Notes that a probe timed out or was refused. Only the status shows it: callers still send
        requests to the origin, and their results decide whether it is down."""
        self._trouble_since = self._trouble_since if self._trouble is not None else now
        self._trouble = err

    def status(self) -> dict[str, Any]:
        """Returns plain values for `cachefs.core.health`."""
        err = self.error
        since = self.down_since if err is self.down_error else self._trouble_since
        found = {
            "origin_down": err is not None and is_down(err),
            "origin_refuses": err is not None and not is_down(err),
            "origin_errors": self.errors,
            "last_warning": self.last_warning,
        }
        if err is not None:
            found |= {"down_since_s": since, "down_code": err.code}
            found |= {"down_cause": err.cause, "down_remedy": err.remedy}
        return found

    def may_probe(self, now: float) -> bool:
        """Returns True to the one caller that should probe a down origin now."""
        if not self.down or 0 <= now - self._asked_at < PROBE_EVERY_S:
            return False
        self._asked_at = now
        return True

    def warning(self, text: str, now: float) -> str:
        """Returns `text` if it should be logged now, "" if the last warning is too recent."""
        self.last_warning = self.current_warning = text
        if 0 < self._warned_at <= now < self._warned_at + WARN_EVERY_S:
            return ""
        self._warned_at = now
        return text
