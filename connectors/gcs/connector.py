"""The connector of Google Cloud Storage: its JSON API as an `ObjectStore`.

Every read names the generation, which the store enforces. Stored bytes are read as they are: a
store that decompresses objects would ignore ranges, and `Accept-Encoding: gzip` prevents it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from cachefs.core.errors import CacheFSError, NotFound
from cachefs.core.model import Fingerprint
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import Head, HttpRequest, OnConnected
from connectors.gcs import replies
from connectors.gcs.access import GcsCredentials
from connectors.gcs.options import GcsOptions
from connectors.objects.connector import ObjectConnector
from connectors.objects.network import check_private, curl_options
from connectors.s3.listing import Listing

SERVICE_URL: Final = "https://storage.googleapis.com"
LISTING_BYTES: Final = 16 << 20
STAT_BYTES: Final = 1 << 20
MAX_KEY_BYTES: Final = 1024
_STORED: Final = "Accept-Encoding: gzip"
_CAPABILITIES: Final = Capabilities(
    ordered_listings=True,
    directories=False,
    posix_attributes=False,
    symlinks=False,
    identity=Identity.CONTENT,
    refuses_other_versions=True,
    mtime_precision_ns=replies.MTIME_PRECISION_NS,
    requests=True,
)


def open_bucket(
    bucket: str, prefix: str, options: GcsOptions, tell_made: OnConnected
) -> ObjectConnector:
    """Returns the connector of a bucket, or of a prefix of it, which sends nothing yet."""
    return ObjectConnector(GcsStore(bucket, options), prefix, tell_made)


class GcsApi:
    """Requests to one bucket, with one token. Implements `ObjectApi`."""

    def __init__(
        self, service_url: str, bucket: str, options: dict[int, Any], token: str, project: str
    ) -> None:
        """`options`: of libcurl. `token`: "" for none. `project`: that pays, or ""."""
        self._objects = f"{service_url}/storage/v1/b/{bucket}/o"
        self._bytes = f"{service_url}/download/storage/v1/b/{bucket}/o"
        self._options = options
        self._headers = (f"Authorization: Bearer {token}",) if token else ()
        self._project = f"&userProject={quote(project, safe='')}" if project else ""

    def list(self, prefix: str, token: str, most: int, delimiter: str = "") -> HttpRequest:
        fields = f"nextPageToken,prefixes,items({replies.FIELDS})"
        pairs = {
            "maxResults": str(most),
            "fields": fields,
            "prefix": prefix,
            "delimiter": delimiter,
            "pageToken": token,
        }
        query = "&".join(f"{name}={quote(text, safe='')}" for name, text in pairs.items() if text)
        return self._limited(f"{self._objects}?{query}", LISTING_BYTES)

    def stat(self, key: str) -> HttpRequest:
        url = f"{self._objects}/{quote(key, safe='')}?fields={replies.FIELDS}"
        return self._limited(url, STAT_BYTES)

    def get(
        self, key: str, offset: int, size: int, etag: str, answer: Sequence[tuple[str, str]] = ()
    ) -> HttpRequest:
        url = f"{self._bytes}/{quote(key, safe='')}?alt=media&generation={quote(etag, safe='')}"
        headers = (*self._headers, f"Range: bytes={offset}-{offset + size - 1}", _STORED)
        return HttpRequest(url + self._project, headers, size, self._options, answer)

    def _limited(self, url: str, size: int) -> HttpRequest:
        return HttpRequest(url + self._project, self._headers, size, self._options, is_limit=True)


class GcsStore:
    """One bucket. Implements `ObjectStore`."""

    capabilities = _CAPABILITIES
    marks_directories = False
    version_header = "x-goog-generation"

    def __init__(self, bucket: str, options: GcsOptions) -> None:
        self.where = f"gs://{bucket}"
        self._bucket = bucket
        self._service_url = options.endpoint_url or SERVICE_URL
        self._project = options.billing_project
        self._curl_options = curl_options(self._service_url, options.ca_bundle)
        self._credentials = None if options.anonymous else GcsCredentials(options)
        if self._credentials:
            check_private(self._service_url)

    def api(self) -> GcsApi:
        token = self._credentials.token() if self._credentials else ""
        return GcsApi(self._service_url, self._bucket, self._curl_options, token, self._project)

    def forget(self) -> None:
        if self._credentials:
            self._credentials.forget()

    def can_be_key(self, key: str) -> bool:
        """Google refuses these keys, so that no request is needed."""
        return len(key.encode()) <= MAX_KEY_BYTES and "\n" not in key and "\r" not in key

    def parse_listing(self, body: bytes) -> Listing:
        return replies.parse_listing(body)

    def parse_stat(self, head: Head, body: bytes) -> Fingerprint | None:
        return replies.parse_stat(body)

    def classify(self, head: Head, body: bytes) -> CacheFSError:
        request_id = head.headers.get("x-guploader-uploadid", "").split(",")[0]
        anonymous = self._credentials is None
        return replies.classify(head.status, body, request_id, anonymous=anonymous)

    def no_container(self) -> NotFound:
        return NotFound("no such bucket", remedy="check the bucket's name", path=self.where)
