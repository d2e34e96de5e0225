"""The credentials of a `gs://` source: tokens of Google's default chain, or of a named file.

google-auth finds and renews them: a file named by GOOGLE_APPLICATION_CREDENTIALS (a service
account, a workload identity, a user), gcloud's own file, the metadata server of a machine.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from datetime import UTC
from typing import Any, Final

import google.auth
import requests
from google.auth import exceptions, identity_pool
from google.auth.transport.requests import Request
from google.oauth2 import credentials as user
from google.oauth2 import service_account

from cachefs.core.errors import BadConfig, CacheFSError, CredentialsMissing, Unreachable
from connectors.credential import Credential
from connectors.deadline import NEVER_S
from connectors.gcs.options import GcsOptions
from connectors.gcs.replies import RENEW
from connectors.kept_token import KeptToken

SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.read_only",)
TOKEN_LIMIT_S: Final = 10.0  # of one request for a token
KEY_FIELD: Final = "credentials.json"
_LOADERS: Final[dict[str, Any]] = {
    "service_account": service_account.Credentials.from_service_account_info,
    "external_account": identity_pool.Credentials.from_info,
    "authorized_user": user.Credentials.from_authorized_user_info,
}
NO_CREDENTIALS: Final = (
    "set GOOGLE_APPLICATION_CREDENTIALS or credentials_file to a key file, or --anonymous for a"
    " public bucket"
)


class GcsCredentials:
    """The source of tokens. Thread-safe. After `forget` the chain is searched again (a rotated
    file, a new login)."""

    def __init__(self, options: GcsOptions, clock: Callable[[], float] = time.time) -> None:
        self._file = options.credentials_file
        self._named = Credential(options.credential, (KEY_FIELD,)) if options.credential else None
        self._kept: KeptToken[str] = KeptToken("a token", clock)
        self._found: tuple[str, Any] | None = None  # with the text of the named credential
        session = requests.Session()
        session.verify = options.ca_bundle or True
        self._request: Any = functools.partial(Request(session), timeout=TOKEN_LIMIT_S)

    def token(self) -> str:
        """Returns a valid token. Raises CredentialsMissing, Unreachable, BadConfig."""
        text = self._named.values()[0] if self._named is not None else ""
        return self._kept.current(text, lambda: self._fetch(text))

    def _fetch(self, text: str) -> tuple[str, float]:
        """Returns a new token, and when it ends."""
        try:
            found = self._credentials(text)
            found.refresh(self._request)
        except exceptions.GoogleAuthError as error:
            if not _is_passing(error):
                self._found = None
            raise _translated(error) from error
        end = found.expiry  # in UTC, without a zone
        return _usable(found), end.replace(tzinfo=UTC).timestamp() if end else NEVER_S

    def _credentials(self, text: str) -> Any:
        known = self._found
        if known is None or known[0] != text:
            made = self._load() if self._named is None else loaded(text, path="")
            known = self._found = text, made
        return known[1]

    def _load(self) -> Any:
        if self._file:
            return load_file(self._file)
        found, _project = google.auth.default(scopes=SCOPES, request=self._request)
        return found

    def forget(self) -> None:
        """Discards the credentials, after the store refused them."""
        if self._named is not None:
            self._named.forget()
        self._found = None
        self._kept.forget()


def _usable(found: Any) -> str:
    """Returns the token of credentials. Raises CredentialsMissing."""
    token: str = found.token or ""
    if not token or not (token.isascii() and token.isprintable()):
        raise CredentialsMissing("the credentials have no usable token", remedy=RENEW)
    return token


def load_file(path: str) -> Any:
    """Returns the credentials in a JSON file. Raises BadConfig for a file that is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return loaded(file.read(), path)
    except OSError as error:
        raise CredentialsMissing(str(error.strerror), path=path, remedy=NO_CREDENTIALS) from error
    except UnicodeDecodeError as error:
        raise _no_credentials(path) from error


def loaded(text: str, path: str) -> Any:
    """Returns the credentials in the JSON text of a file. Raises BadConfig."""
    try:
        info = json.loads(text)
        return _LOADERS[info["type"]](info, scopes=SCOPES)
    except (ValueError, KeyError, TypeError) as error:
        raise _no_credentials(path) from error


def _no_credentials(path: str) -> BadConfig:
    remedy = f"its `type` is one of {', '.join(_LOADERS)}"
    return BadConfig("credentials_file: no JSON file of credentials", path=path, remedy=remedy)


def _is_passing(error: exceptions.GoogleAuthError) -> bool:
    """Returns whether another attempt may get a token: the token's server gave none, or is busy.
    The metadata server's silence is the cause of another error."""
    silence = exceptions.TransportError
    return bool(error.retryable) or any(isinstance(e, silence) for e in (error, error.__cause__))


def _translated(error: exceptions.GoogleAuthError) -> CacheFSError:
    """Returns the typed error of google-auth's. Its text may hold a server's whole reply, so that
    only a part of the first line is shown."""
    first = (str(error.args[0] if error.args else error).splitlines() or [""])[0][:200]
    if isinstance(error, exceptions.DefaultCredentialsError):
        return CredentialsMissing("no Google credentials were found", remedy=NO_CREDENTIALS)
    if _is_passing(error):
        return Unreachable(f"no token can be fetched ({first})", remedy="check the network")
    return CredentialsMissing(f"the credentials cannot be renewed ({first})", remedy=RENEW)
