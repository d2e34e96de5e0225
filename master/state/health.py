"""Is an origin answering? Pure: counts errors, says who may ask while it is down.

While it is down everything known is answered at once and one caller per `PROBE_EVERY_S` asks again;
what is unknown always asks, since it has no other answer.
"""

from __future__ import annotations

from typing import Any, Final

from cachefs.core.errors import CacheFSError, CredentialsMissing, DeadlineExceeded

PROBE_EVERY_S: Final = 5.0
WARN_EVERY_S: Final = 30.0


def is_down(err: CacheFSError) -> bool:
    """Returns True for errors that say nothing about the name: the origin could not answer now, or
    this side had no valid credentials to ask with. A refusal of valid credentials is an answer."""
    return err.retryable or isinstance(err, (DeadlineExceeded, CredentialsMissing))


class OriginHealth:
    """Up, or down since some error. Times are wall seconds. `was_asked`: True if the origin was
    asked anything since the last probe cleared it."""

    def __init__(self) -> None:
        self.errors = 0
        self.last_warning = ""
        self.current_warning = ""  # nothing went well since
        self.down_since = 0.0
        self.down_error: CacheFSError | None = None  # the last one
        self.was_asked = False
        self._trouble: CacheFSError | None = None  # what the last probe found; changes no answer
        self._trouble_since = 0.0
        self._down = False
        self._asked_at = 0.0
        self._warned_at = 0.0

    @property
    def down(self) -> bool:
        return self._down

    @property
    def error(self) -> CacheFSError | None:
        """Why it is down, or what the last probe found; None if all is well."""
        return self.down_error or self._trouble

    def succeeded(self) -> None:
        self.current_warning = ""
        self._down, self.was_asked = False, True
        self.down_error = self._trouble = None

    def failed(self, err: CacheFSError, now: float) -> None:
        self.errors += 1
        self.was_asked = True
        if is_down(err):
            self.down_since = self.down_since if self._down else now
            self.down_error = err
            self._down = True
            self._asked_at = now

    def troubled(self, err: CacheFSError, now: float) -> None:
        """Notes that a probe got no answer in time, or a refusal. It is shown; callers go on asking
        the origin, whose own answers decide."""
        self._trouble_since = self._trouble_since if self._trouble is not None else now
        self._trouble = err

    def status(self) -> dict[str, Any]:
        """Returns plain values, of which `cachefs.core.health` takes what it needs."""
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
        """True for the caller that should ask a down origin again now."""
        if not self._down or 0 <= now - self._asked_at < PROBE_EVERY_S:
            return False
        self._asked_at = now
        return True

    def warning(self, text: str, now: float) -> str:
        """`text` when it should be logged now, "" when the last one is too recent."""
        self.last_warning = self.current_warning = text
        if 0 < self._warned_at <= now < self._warned_at + WARN_EVERY_S:
            return ""
        self._warned_at = now
        return text
