"""The place and the options of an `az://` source, and their validation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from cachefs.core.errors import BadConfig
from connectors import credential, keys
from connectors.objects import options as shared

OPTIONS: Final[dict[str, str]] = {
    "endpoint_url": "URL of the account's blob service; default: https://ACCOUNT.blob.core.windows.net",
    credential.OPTION: credential.HELP,
    "sas_token_file": "file with a SAS token; default: AZURE_STORAGE_SAS_TOKEN",
    "account_key_file": "file with a key of the account; default: AZURE_STORAGE_KEY",
    "client_id": "client id of a managed identity; default: Azure's default chain decides",
    "anonymous": "true: requests have no credentials (public containers); default false",
    "ca_bundle": "PEM file of certificates; default: those of certifi",
}
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}|\$root|\$web")
_ID: Final = re.compile(r"[A-Za-z0-9-]{0,64}")


class AzureOptions(msgspec.Struct, frozen=True):
    """The parsed options; "" means not given."""

    endpoint_url: str = ""
    credential: str = ""
    sas_token_file: str = ""
    account_key_file: str = ""
    client_id: str = ""
    anonymous: bool = False
    ca_bundle: str = ""


class Place(NamedTuple):
    """The parts of a URL."""

    account: str
    container: str
    prefix: str


def parse_options(options: Mapping[str, str]) -> AzureOptions:
    """Returns the values of the options, which `Scheme.check_options` knows. Raises BadConfig for a
    bad value."""
    client_id = options.get("client_id", "")
    if not _ID.fullmatch(client_id):
        raise BadConfig(f"bad client_id {client_id!r}", remedy="give the id of an identity")
    return AzureOptions(
        endpoint_url=shared.endpoint(options),
        credential=credential.parse_name(
            options, "sas_token_file", "account_key_file", "client_id", "anonymous"
        ),
        sas_token_file=shared.file_path(options, "sas_token_file", "a file with a SAS token"),
        account_key_file=shared.file_path(options, "account_key_file", "a file with a key"),
        client_id=client_id,
        anonymous=shared.switch(options, "anonymous"),
        ca_bundle=shared.file_path(options, "ca_bundle", "a PEM file"),
    )


def parse_place(rest: str) -> Place:
    """Returns the parts of `account/container/prefix`. Raises BadConfig. A message never holds a
    query, which may be a SAS token."""
    text, mark, query = rest.partition("?")
    account, _, below = text.partition("/")
    container, _, prefix = below.partition("/")
    shown = f"az://{text}"
    if "sig=" in query:
        remedy = "write the SAS token to a file and give --option sas_token_file=FILE"
        raise BadConfig(f"{shown}: a source's URL holds no SAS token", remedy=remedy)
    if not _ACCOUNT.fullmatch(account):
        remedy = "3 to 24 lower-case letters and digits: az://ACCOUNT/CONTAINER/PREFIX"
        raise BadConfig(f"bad account name {account!r} in {shown!r}", remedy=remedy)
    if not _CONTAINER.fullmatch(container):
        remedy = "3 to 63 lower-case letters, digits and single hyphens"
        raise BadConfig(f"bad container name {container!r} in {shown!r}", remedy=remedy)
    prefix = f"{prefix}{mark}{query}".rstrip("/")
    if not keys.visible_path(prefix.encode("utf-8", "surrogateescape")):
        raise BadConfig(f"bad prefix in {shown!r}", remedy="no empty, '.' or '..' segments")
    return Place(account, container, prefix)
