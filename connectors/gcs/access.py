"""The credentials of a `gs://` source: tokens of Google's default chain, or of a named file.

google-auth finds and renews them: a file named by GOOGLE_APPLICATION_CREDENTIALS (a service
account, a workload identity, a user), gcloud's own file, the metadata server of a machine.
"""

from __future__ import annotations

import functools
import json
import threading
from typing import Any, Final

import google.auth
import requests
from google.auth import exceptions, identity_pool
from google.auth.transport.requests import Request
from google.oauth2 import credentials as user
from google.oauth2 import service_account

from cachefs.core.errors import BadConfig, CacheFSError, CredentialsMissing, Unreachable
from connectors.gcs.options import GcsOptions
from connectors.gcs.replies import RENEW

SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.read_only",)
TOKEN_LIMIT_S: Final = 10.0  # of one request for a token
NO_CREDENTIALS: Final = (
    "set GOOGLE_APPLICATION_CREDENTIALS or credentials_file to a key file, or --anonymous for a"
    " public bucket"
)


class GcsCredentials:
    """The source of tokens. Thread-safe; one thread at a time renews a token. After `forget` the
    chain is searched again (a rotated file, a new login)."""

    def __init__(self, options: GcsOptions) -> None:
        self._file = options.credentials_file
        self._lock = threading.Lock()
        self._found: Any = None
        session = requests.Session()
        session.verify = options.ca_bundle or True
        self._request: Any = functools.partial(Request(session), timeout=TOKEN_LIMIT_S)

    def token(self) -> str:
        """Returns a valid token. Raises CredentialsMissing, Unreachable, BadConfig."""
        with self._lock:
            try:
                return self._renewed()
            except exceptions.GoogleAuthError as error:
                self._found = None
                raise _translated(error) from error

    def _renewed(self) -> str:
        if self._found is None:
            self._found = self._load()
        if not self._found.valid:
            self._found.refresh(self._request)
        token: str = self._found.token or ""
        if not token or not (token.isascii() and token.isprintable()):
            raise CredentialsMissing("the credentials have no usable token", remedy=RENEW)
        return token

    def _load(self) -> Any:
        if self._file:
            return load_file(self._file)
        found, _project = google.auth.default(scopes=SCOPES, request=self._request)
        return found

    def forget(self) -> None:
        """Discards the credentials, after the store refused them."""
        with self._lock:
            self._found = None


def load_file(path: str) -> Any:
    """Returns the credentials in a JSON file. Raises BadConfig for a file that is none."""
    loaders: dict[str, Any] = {
        "service_account": service_account.Credentials.from_service_account_info,
        "external_account": identity_pool.Credentials.from_info,
        "authorized_user": user.Credentials.from_authorized_user_info,
    }
    try:
        with open(path, encoding="utf-8") as file:
            info = json.load(file)
        return loaders[info["type"]](info, scopes=SCOPES)
    except OSError as error:
        raise CredentialsMissing(str(error.strerror), path=path, remedy=NO_CREDENTIALS) from error
    except (ValueError, KeyError, TypeError) as error:
        kinds = ", ".join(loaders)
        cause = "credentials_file: no JSON file of credentials"
        raise BadConfig(cause, path=path, remedy=f"its `type` is one of {kinds}") from error


def _translated(error: exceptions.GoogleAuthError) -> CacheFSError:
    """Returns the typed error of google-auth's. Its text may hold a server's whole reply, so that
    only a part of the first line is shown."""
    first = (str(error.args[0] if error.args else error).splitlines() or [""])[0][:200]
    if isinstance(error, exceptions.DefaultCredentialsError):
        return CredentialsMissing("no Google credentials were found", remedy=NO_CREDENTIALS)
    if isinstance(error, exceptions.TransportError):
        return Unreachable(f"no token can be fetched ({first})", remedy="check the network")
    return CredentialsMissing(f"the credentials cannot be renewed ({first})", remedy=RENEW)
