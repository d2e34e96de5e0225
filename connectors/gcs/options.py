"""The URL and the options of a `gs://` source, and their validation. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from connectors import keys
from connectors.objects import options as shared

OPTIONS: Final[dict[str, str]] = {
    "endpoint_url": "URL of the server; default: Google's",
    "credentials_file": "JSON file of a service account, a workload identity or a user;"
    " default: Google's default chain",
    "anonymous": "true: requests have no credentials (public buckets); default false",
    "billing_project": "project that pays for the requests, for requester-pays buckets",
    "ca_bundle": "PEM file of certificates; default: those of certifi",
}
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_PROJECT: Final = re.compile(r"[A-Za-z0-9.:_-]{0,100}")


class GcsOptions(msgspec.Struct, frozen=True):
    """The parsed options; "" means not given."""

    endpoint_url: str = ""
    credentials_file: str = ""
    anonymous: bool = False
    billing_project: str = ""
    ca_bundle: str = ""


def parse_options(options: Mapping[str, str]) -> GcsOptions:
    """Checks and returns the options. Raises BadConfig that names the option or a similar one."""
    shared.check_names(options, OPTIONS, "gs")
    project = options.get("billing_project", "")
    if not _PROJECT.fullmatch(project):
        raise BadConfig(f"bad billing_project {project!r}", remedy="give the id of a project")
    return GcsOptions(
        endpoint_url=shared.endpoint(options),
        credentials_file=shared.file_path(options, "credentials_file", "a JSON file"),
        anonymous=shared.switch(options, "anonymous"),
        billing_project=project,
        ca_bundle=shared.file_path(options, "ca_bundle", "a PEM file"),
    )


def normalise(url: str) -> str:
    """Returns `gs://bucket/prefix` without a trailing '/'. Raises BadConfig."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        remedy = "3 to 222 lower-case letters, digits, dots, hyphens and underscores"
        raise BadConfig(f"bad bucket name {bucket!r} in {url!r}", remedy=remedy)
    if not keys.visible_path(prefix.encode("utf-8", "surrogateescape")):
        remedy = "no empty, '.' or '..' segments"
        raise BadConfig(f"bad prefix {prefix!r} in {url!r}", remedy=remedy)
    return f"gs://{bucket}/{prefix}" if prefix else f"gs://{bucket}"
