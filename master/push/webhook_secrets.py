"""The secrets of the sources that accept events at the admin API."""

from __future__ import annotations

import hmac
from typing import Final

from cachefs.core.errors import AccessDenied, CredentialsMissing
from connectors.credential import LOOK_S, Credential, directory_of
from master.push.settings import Kind, parse

FIELD: Final = "webhook_secret"
MIN_CHARS: Final = 16
MAX_KEPT: Final = 1000  # credentials


def check_present(push: str) -> None:
    """Reads the secret of a setting that `master.push.settings.checked` has passed, if it has one.
    Raises CredentialsMissing if no event could be accepted."""
    kind, name = parse(push)
    if kind is not Kind.WEBHOOK:
        return
    try:
        _secret(name, Credential(name, (FIELD,)))
    except CredentialsMissing as err:
        file = f"{directory_of(name)}/{FIELD}"
        raise CredentialsMissing(
            f"the master would refuse every event: {err.cause}",
            remedy=f"write the sender's secret to {file} on the master",
            path=err.path,
        ) from err


class WebhookSecrets:
    """The secrets of all sources. For threads."""

    def __init__(self) -> None:
        self._kept: dict[str, Credential] = {}
        self._passed: dict[str, tuple[bytes, float]] = {}

    def passed(self, push: str, secret: str, now: float) -> bool:
        """Returns whether `check` found this secret right within the last second."""
        kept, at = self._passed.get(push, (b"", -LOOK_S))
        return now - at < LOOK_S and hmac.compare_digest(kept, _bytes(secret))

    def check(self, push: str, secret: str, now: float) -> None:
        """Reads the secret. Raises AccessDenied unless `secret` is that of the setting."""
        kind, name = parse(push)
        if kind is not Kind.WEBHOOK or not _equal(self._of(name), secret):
            raise AccessDenied("the secret is not that of a source which accepts events")
        if len(self._passed) > MAX_KEPT:
            self._passed.clear()
        self._passed[push] = _bytes(secret), now

    def _of(self, name: str) -> str:
        if len(self._kept) > MAX_KEPT:
            self._kept.clear()
        return _secret(name, self._kept.setdefault(name, Credential(name, (FIELD,))))


def _secret(name: str, credential: Credential) -> str:
    (secret,) = credential.values()
    if len(secret) < MIN_CHARS:
        raise CredentialsMissing(f"{FIELD} of {name} has less than {MIN_CHARS} characters")
    return secret


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(_bytes(one), _bytes(other))


def _bytes(secret: str) -> bytes:
    """Returns the bytes of a secret, of which a sender may write any."""
    return secret.encode("utf-8", "surrogatepass")
