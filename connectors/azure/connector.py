"""The connector of Azure Blob Storage: its REST API as an `ObjectStore`.

Azure documents that names are listed in alphabetical order, but not by which alphabet, and accounts
with a hierarchical namespace order them by segments. So listings are declared unordered.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import pycurl

from cachefs.core.errors import CacheFSError, NotFound
from cachefs.core.model import Fingerprint
from connectors.azure import replies
from connectors.azure.access import Authorization, AzureCredentials
from connectors.azure.options import AzureOptions, Place
from connectors.azure.sas import API_VERSION
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import Head, HttpRequest, OnConnected
from connectors.objects.connector import ObjectConnector
from connectors.objects.network import check_private, curl_options
from connectors.s3.listing import Listing

LISTING_BYTES: Final = 16 << 20
MAX_KEY_CHARS: Final = 1024
_CONTROL: Final = re.compile("[\0-\x1f\x80-\x9f\ufffe\uffff]")
_HEAD: Final = {pycurl.NOBODY: 1, pycurl.IGNORE_CONTENT_LENGTH: 1}  # libcurl rejects a bad size
_CAPABILITIES: Final = Capabilities(
    ordered_listings=False,
    directories=False,
    posix_attributes=False,
    symlinks=False,
    identity=Identity.CONTENT,
    refuses_other_versions=True,
    mtime_precision_ns=10**9,
    requests=True,
)


def open_container(place: Place, options: AzureOptions, tell_made: OnConnected) -> ObjectConnector:
    """Returns the connector of a container, or of a prefix of it, which sends nothing yet. Raises
    ModuleNotFoundError without the library of credentials, which only some sources import."""
    if importlib.util.find_spec("azure.identity") is None:
        raise ModuleNotFoundError("No module named 'azure.identity'", name="azure.identity")
    return ObjectConnector(AzureStore(place, options), place.prefix, tell_made)


class AzureApi:
    """Requests to one container, with one authorization. Implements `ObjectApi`."""

    def __init__(self, url: str, options: dict[int, Any], authorization: Authorization) -> None:
        """`url`: of the container. `options`: of libcurl."""
        self._url = url
        self._options = options
        self._query = authorization.query
        headers = (f"x-ms-version: {API_VERSION}",)
        self._headers = (*headers, authorization.header) if authorization.header else headers

    def list(self, prefix: str, token: str, most: int, delimiter: str = "") -> HttpRequest:
        pairs = {
            "restype": "container",
            "comp": "list",
            "maxresults": str(most),
            "prefix": prefix,
            "delimiter": delimiter,
            "marker": token,
            "include": "metadata",  # which may mark a directory
        }
        query = "&".join(f"{name}={quote(text, safe='')}" for name, text in pairs.items() if text)
        url = f"{self._url}?{query}{'&' if self._query else ''}{self._query}"
        return HttpRequest(url, self._headers, LISTING_BYTES, self._options, is_limit=True)

    def stat(self, key: str) -> HttpRequest:
        return HttpRequest(self._url_of(key), self._headers, 0, {**self._options, **_HEAD})

    def get(
        self, key: str, offset: int, size: int, etag: str, answer: Sequence[tuple[str, str]] = ()
    ) -> HttpRequest:
        range_ = f"Range: bytes={offset}-{offset + size - 1}"
        headers = (*self._headers, range_, f'If-Match: "{etag}"')
        return HttpRequest(self._url_of(key), headers, size, self._options, answer)

    def _url_of(self, key: str) -> str:
        url = f"{self._url}/{quote(key, safe='/-_.~')}"
        return f"{url}?{self._query}" if self._query else url


class AzureStore:
    """One container. Implements `ObjectStore`."""

    capabilities = _CAPABILITIES
    marks_directories = True  # of Hadoop and of hierarchical namespaces
    version_header = "etag"

    def __init__(self, place: Place, options: AzureOptions) -> None:
        account, container, _ = place
        self.where = f"az://{account}/{container}"
        service_url = options.endpoint_url or f"https://{account}.blob.core.windows.net"
        self._url = f"{service_url}/{container}"
        self._curl_options = curl_options(service_url, options.ca_bundle)
        self._credentials = None if options.anonymous else AzureCredentials(place, options)
        if self._credentials:
            check_private(service_url)

    def api(self) -> AzureApi:
        authorization = self._credentials.current() if self._credentials else Authorization()
        return AzureApi(self._url, self._curl_options, authorization)

    def forget(self) -> None:
        if self._credentials:
            self._credentials.forget()

    def can_be_key(self, key: str) -> bool:
        """Azure refuses these keys, so that no request is needed."""
        return len(key) <= MAX_KEY_CHARS and not _CONTROL.search(key)

    def parse_listing(self, body: bytes) -> Listing:
        return replies.parse_listing(body)

    def parse_stat(self, head: Head, body: bytes) -> Fingerprint | None:
        return replies.parse_stat(head)

    def classify(self, head: Head, body: bytes) -> CacheFSError:
        return replies.classify(head, body, anonymous=self._credentials is None)

    def no_container(self) -> NotFound:
        remedy = "check the names of account and container"
        return NotFound("no such container", remedy=remedy, path=self.where)
