"""The options of a `gs://` source, and their validation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from connectors import credential
from connectors.objects import options as shared

OPTIONS: Final[dict[str, str]] = {
    "endpoint_url": "URL of the server; default: Google's",
    credential.OPTION: credential.HELP,
    "credentials_file": "JSON file of a service account, a workload identity or a user;"
    " default: Google's default chain",
    "anonymous": "true: requests have no credentials (public buckets); default false",
    "billing_project": "project that pays for the requests, for requester-pays buckets",
    "ca_bundle": "PEM file of certificates; default: those of certifi",
}
_PROJECT: Final = re.compile(r"[A-Za-z0-9.:_-]{0,100}")


class GcsOptions(msgspec.Struct, frozen=True):
    """The parsed options; "" means not given."""

    endpoint_url: str = ""
    credential: str = ""
    credentials_file: str = ""
    anonymous: bool = False
    billing_project: str = ""
    ca_bundle: str = ""


def parse_options(options: Mapping[str, str]) -> GcsOptions:
    """Returns the values of the options, which `Scheme.check_options` knows. Raises BadConfig for a
    bad value."""
    project = options.get("billing_project", "")
    if not _PROJECT.fullmatch(project):
        raise BadConfig(f"bad billing_project {project!r}", remedy="give the id of a project")
    return GcsOptions(
        endpoint_url=shared.endpoint(options),
        credential=credential.parse_name(options, "credentials_file", "anonymous"),
        credentials_file=shared.file_path(options, "credentials_file", "a JSON file"),
        anonymous=shared.switch(options, "anonymous"),
        billing_project=project,
        ca_bundle=shared.file_path(options, "ca_bundle", "a PEM file"),
    )
