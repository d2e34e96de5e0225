"""The options of an `s3://` source, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from cachefs.core.errors import BadConfig
from connectors import credential
from connectors.objects import options as shared

OPTIONS: Final[dict[str, str]] = {
    "endpoint_url": "URL of the S3 server; default: the environment's or profile's, else AWS",
    credential.OPTION: credential.HELP,
    "profile": "profile in the AWS configuration files; default: AWS_PROFILE, or the default chain",
    "region": "region to sign for; default: the bucket's, else the profile's, else us-east-1",
    "requester_pays": "true: the requester pays for the requests; default false",
    "anonymous": "true: requests are not signed (public buckets); default false",
    "ca_bundle": "PEM file of certificates; default: AWS_CA_BUNDLE, the profile's, the system's",
    "addressing_style": "path | virtual | auto (virtual on AWS, path elsewhere); default auto",
    "ordered_listings": "false: the server lists names in another order than AWS; default true",
}
ADDRESSING_STYLES: Final = ("auto", "path", "virtual")


class S3Options(msgspec.Struct, frozen=True):
    """The parsed options; "" means not given."""

    endpoint_url: str = ""
    credential: str = ""
    profile: str = ""
    region: str = ""
    requester_pays: bool = False
    anonymous: bool = False
    ca_bundle: str = ""
    addressing_style: str = "auto"
    ordered_listings: bool = True


def parse_options(options: Mapping[str, str]) -> S3Options:
    """Returns the values of the options, which `Scheme.check_options` knows. Raises BadConfig for a
    bad value."""
    return S3Options(
        endpoint_url=_endpoint(options.get("endpoint_url", "")),
        credential=credential.parse_name(options, "profile", "anonymous"),
        profile=options.get("profile", ""),
        region=options.get("region", ""),
        requester_pays=_boolean(options, "requester_pays"),
        anonymous=_boolean(options, "anonymous"),
        ca_bundle=shared.file_path(options, "ca_bundle", "a PEM file", "--ca-bundle"),
        addressing_style=_addressing_style(options.get("addressing_style", "") or "auto"),
        ordered_listings=_boolean({"ordered_listings": "true", **options}, "ordered_listings"),
    )


def _endpoint(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if "@" in rest.partition("/")[0]:  # it would show in messages, logs and records
        raise BadConfig(
            "an endpoint URL holds no user and password",
            remedy="give the keys to the AWS credentials chain, by a profile or the environment",
        )
    if url and (not separator or scheme not in ("http", "https") or not _host(url)):
        raise BadConfig(f"bad endpoint URL {url!r}", remedy="write it as https://host[:port]")
    return url.rstrip("/")


def _host(url: str) -> str:
    """Returns the host of a URL, or ""."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # half an IPv6 address
        return ""


def _boolean(options: Mapping[str, str], name: str) -> bool:
    return shared.switch(options, name, _flag(name))


def _addressing_style(style: str) -> str:
    if style not in ADDRESSING_STYLES:
        known = ", ".join(ADDRESSING_STYLES)
        cause = f"bad value {style!r} of {_flag('addressing_style')}"
        raise BadConfig(cause, remedy=f"one of {known}")
    return style


def _flag(name: str) -> str:
    """Returns the command-line flag of an option."""
    return "--" + name.replace("_", "-")
