"""Remedies for users of Kubernetes, in the place of those for command lines. Pure."""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import CacheFSError, CredentialsMissing

_CREDENTIALS: Final = (
    "spec.credentials may name a profile of the Secret in the chart's credentials.secretName, or "
    "an entry of its credentials.named"
)


def with_remedy(err: CacheFSError) -> CacheFSError:
    """Returns an error of the master with what a user of Datasets can do about it."""
    if not isinstance(err, CredentialsMissing):
        return err
    return CredentialsMissing(
        err.cause, remedy=_CREDENTIALS, path=err.path, request_id=err.request_id
    )
