"""The options that several object stores share, and their validation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from cachefs.core.errors import BadConfig

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"", "false", "0", "no", "off"})


def endpoint(options: Mapping[str, str]) -> str:
    """Returns the option `endpoint_url` without a trailing '/'."""
    url = options.get("endpoint_url", "")
    scheme, separator, rest = url.partition("://")
    if "@" in rest.partition("/")[0] or "?" in rest:  # it would show in messages, logs and records
        remedy = "give credentials by a file or the environment"
        raise BadConfig("an endpoint URL holds no credentials", remedy=remedy)
    if url and (not separator or scheme not in ("http", "https") or not _host(url)):
        raise BadConfig(f"bad endpoint URL {url!r}", remedy="write it as https://host[:port]")
    return url.rstrip("/")


def _host(url: str) -> str:
    """Returns the host of a URL, or ""."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") if url.isascii() and parts.port != 0 else ""
    except ValueError:  # half an IPv6 address, a bad port
        return ""


def switch(options: Mapping[str, str], name: str, shown: str = "") -> bool:
    """Returns the value of an option that is true or false. `shown`: its name in messages."""
    value = options.get(name, "").strip().lower()
    if value not in _TRUE | _FALSE:
        raise BadConfig(f"bad value {value!r} of {shown or name}", remedy="write true or false")
    return value in _TRUE


def file_path(options: Mapping[str, str], name: str, what: str, shown: str = "") -> str:
    """Returns the value of an option that names a file, or "". `shown`: its name in messages."""
    path = options.get(name, "")
    if path and not os.path.isfile(path):
        raise BadConfig(f"{shown or name}: no such file", path=path, remedy=f"give {what}")
    return path
