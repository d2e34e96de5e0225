"""The credentials of an `az://` source: a SAS token, a key of the account, or Azure's default chain
(service principal, workload identity, managed identity, the Azure CLI).

Options name files and never hold a secret. Files are read again when they change.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from cachefs.core.errors import CredentialsMissing, Unreachable, lacks_descriptors
from connectors.azure.options import AzureOptions, Place
from connectors.azure.replies import RENEW
from connectors.azure.sas import sign_container
from connectors.credential import Credential
from connectors.kept_token import KeptToken

FIELDS: Final = ("sas_token", "account_key")  # of a named credential
SCOPE: Final = "https://storage.azure.com/.default"
SIGNED_S: Final = 3600.0  # a token that a key signs
TOKEN_LIMIT_S: Final = 10.0  # of one request for a token
NO_CREDENTIALS: Final = (
    "set AZURE_STORAGE_SAS_TOKEN or sas_token_file, log in (az login), or give --anonymous for a"
    " public container"
)


class Authorization(NamedTuple):
    """What authorises requests: a query to append to URLs, or a header. `repr` hides both."""

    query: str = ""
    header: str = ""

    def __repr__(self) -> str:
        return "Authorization(...)"


class AzureCredentials:
    """The credentials of one container. Thread-safe."""

    def __init__(
        self, place: Place, options: AzureOptions, clock: Callable[[], float] = time.time
    ) -> None:
        self._place = place
        self._options = options
        self._named = _named(options)
        self._clock = clock
        self._chain: Any = None
        self._kept: KeptToken[Authorization] = KeptToken("a token", clock)

    def current(self) -> Authorization:
        """Returns valid credentials. Raises CredentialsMissing, Unreachable."""
        sas, key = self._secrets()
        if sas:
            check_sas(sas, self._clock())
            return Authorization(query=sas)
        return self._kept.current(key, lambda: self._signed(key) if key else self._identified())

    def _secrets(self) -> tuple[str, str]:
        """Returns a SAS token, or else a key, or else neither."""
        if self._named is not None:
            sas, key = (_checked(one, self._options.credential) for one in self._named.values())
            return sas.lstrip("?"), key
        key = _secret(self._options.account_key_file, "AZURE_STORAGE_KEY")
        if self._options.account_key_file:
            return "", key
        return _secret(self._options.sas_token_file, "AZURE_STORAGE_SAS_TOKEN").lstrip("?"), key

    def _signed(self, key: str) -> tuple[Authorization, float]:
        now_s = self._clock()
        account, container, _ = self._place
        query = sign_container(account, container, key, now_s, SIGNED_S)
        return Authorization(query=query), now_s + SIGNED_S

    def _identified(self) -> tuple[Authorization, float]:
        """Returns a token of Azure's default chain, and when it ends."""
        from azure.core.exceptions import AzureError, ClientAuthenticationError

        try:
            chain = self._chain = self._chain or _open_chain(self._options)
            found = chain.get_token(SCOPE)
        except ClientAuthenticationError as error:
            raise no_identity(error) from error
        except (OSError, ValueError) as error:  # of the file of a workload identity
            if lacks_descriptors(error):
                raise
            cause = f"the credentials cannot be read ({_first_line(error)})"
            raise CredentialsMissing(cause, remedy=RENEW) from error
        except AzureError as error:
            cause = f"no token can be fetched ({_first_line(error)})"
            raise Unreachable(cause, remedy="check the network") from error
        return Authorization(header=f"Authorization: Bearer {found.token}"), found.expires_on

    def forget(self) -> None:
        """Discards the credentials, after the store refused them."""
        if self._named is not None:
            self._named.forget()
        self._chain = None
        self._kept.forget()


def _named(options: AzureOptions) -> Credential | None:
    name = options.credential
    return Credential(name, FIELDS) if name else None


def check_sas(sas: str, now_s: float) -> None:
    """Raises CredentialsMissing for a SAS token that is none, or that has expired: Azure reports of
    both only that it refuses them."""
    facts = parse_qs(sas)
    if "sig" not in facts:
        raise CredentialsMissing("the SAS token has no signature", remedy=RENEW)
    try:
        end = datetime.fromisoformat(facts.get("se", [""])[0])
    except ValueError:  # a stored access policy has the time
        return
    if end.replace(tzinfo=end.tzinfo or UTC).timestamp() <= now_s:
        raise CredentialsMissing(f"the SAS token has expired ({end})", remedy=RENEW)


def _secret(path: str, variable: str) -> str:
    """Returns the text of a file, or of a variable if none is named. A file is read at each call:
    it may change, and a mounted secret is in the page cache."""
    if not path:
        text = os.environ.get(variable, "").strip()
    else:
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            cause = "the file of the credentials cannot be read"
            raise CredentialsMissing(cause, path=path, remedy="check it") from error
    if path and not text:
        raise CredentialsMissing("the file of the credentials is empty", path=path)
    return _checked(text, path or variable)


def _checked(text: str, where: str) -> str:
    if not (text.isascii() and text.isprintable()) or " " in text:
        cause = f"the credentials of {where} are no single printable line"
        raise CredentialsMissing(cause, remedy="write them again")
    return text


def _open_chain(options: AzureOptions) -> Any:
    from azure.identity import DefaultAzureCredential

    # It warns of each failure in ten lines, which `no_identity` makes one.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    return DefaultAzureCredential(
        managed_identity_client_id=options.client_id or None,
        exclude_shared_token_cache_credential=True,
        exclude_visual_studio_code_credential=True,
        exclude_developer_cli_credential=True,
        exclude_powershell_credential=True,
        exclude_broker_credential=True,
        connection_timeout=TOKEN_LIMIT_S,
        read_timeout=TOKEN_LIMIT_S,
        process_timeout=int(TOKEN_LIMIT_S),
        connection_verify=options.ca_bundle or True,
    )


def no_identity(error: BaseException) -> CredentialsMissing:
    """Returns the error of a chain that gave no token. Its message has a line for each attempt, and
    it ends at the first one that has credentials which do not work."""
    failed = [line.strip() for line in str(error).splitlines() if "Authentication failed" in line]
    if not failed:
        return CredentialsMissing("no Azure credentials were found", remedy=NO_CREDENTIALS)
    cause = f"the credentials cannot be renewed ({failed[0][:200]})"
    return CredentialsMissing(cause, remedy=RENEW)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
