"""The network settings of a source whose store is reached by HTTP: proxy, trusted certificates, and
the rule that credentials are not sent in clear to another machine."""

from __future__ import annotations

import ipaddress
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import pycurl

from cachefs.core.errors import BadConfig

_CLEAR: Final = "write the endpoint URL as https://, or give --anonymous"


def curl_options(url: str, ca_bundle: str) -> dict[int, Any]:
    """Returns libcurl's options for the requests to a URL. `ca_bundle`: a PEM file; "": the usual
    authorities."""
    trusted = ca_bundle or certifi.where()
    return {
        pycurl.PROXY: _proxy_for(url),  # "": none, even if the environment has one
        pycurl.CAINFO: trusted,
        pycurl.PROXY_CAINFO: trusted,
    }


def _proxy_for(url: str) -> str:
    """Returns the proxy of the environment. None for this machine: `check_private` lets credentials
    go there in clear."""
    parts = urlsplit(url)
    if _is_loopback(parts.hostname or "") or proxy_bypass(parts.netloc):
        return ""
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all", "")


def check_private(url: str) -> None:
    """Raises BadConfig if credentials sent to this URL could be read on the network."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not _is_loopback(parts.hostname or ""):
        cause = f"credentials are not sent to {parts.scheme}://{parts.netloc}, in clear"
        raise BadConfig(cause, remedy=_CLEAR)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
