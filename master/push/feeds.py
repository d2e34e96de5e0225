"""How a source hears of changes at its store: the setting, and the secret of a webhook."""

from __future__ import annotations

import hmac
from typing import Final

from cachefs.core.errors import AccessDenied, BadConfig, CredentialsMissing
from connectors import credential
from connectors.credential import LOOK_S, Credential

WEBHOOK: Final = "webhook"
FIELD: Final = "webhook_secret"
MIN_CHARS: Final = 16
MAX_KEPT: Final = 1000  # credentials


def checked(push: str, url: str) -> str:
    """Returns the setting: "" or "webhook:NAME", of the credential that has the secret. Raises
    BadConfig."""
    if not push:
        return ""
    kind, _, name = push.partition(":")
    if kind != WEBHOOK or not name:
        raise BadConfig(f"no such feed: {push!r}", remedy="write webhook:NAME, or none")
    credential.parse_name({credential.OPTION: name})
    if not url.startswith("s3://"):
        raise BadConfig("only stores of S3 send events", path=url)
    return push


class WebhookSecrets:
    """The secrets of all sources. For threads."""

    def __init__(self) -> None:
        self._kept: dict[str, Credential] = {}
        self._passed: dict[str, tuple[bytes, float]] = {}

    def passed(self, push: str, secret: str, now: float) -> bool:
        """Returns whether `check` found this secret right within the last second."""
        kept, at = self._passed.get(push, (b"", -LOOK_S))
        return now - at < LOOK_S and hmac.compare_digest(kept, secret.encode())

    def check(self, push: str, secret: str, now: float) -> None:
        """Reads the secret. Raises AccessDenied unless `secret` is that of the setting."""
        if not push or not hmac.compare_digest(self._of(push).encode(), secret.encode()):
            raise AccessDenied("the secret is not that of a source which accepts events")
        if len(self._passed) > MAX_KEPT:
            self._passed.clear()
        self._passed[push] = secret.encode(), now

    def _of(self, push: str) -> str:
        name = push.removeprefix(f"{WEBHOOK}:")
        if len(self._kept) > MAX_KEPT:
            self._kept.clear()
        kept = self._kept.setdefault(name, Credential(name, (FIELD,)))
        (secret,) = kept.values()
        if len(secret) < MIN_CHARS:
            raise CredentialsMissing(f"{FIELD} of {name} has less than {MIN_CHARS} characters")
        return secret
