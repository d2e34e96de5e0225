"""Requests to a bucket, which libcurl signs and sends. No retries; every error is a typed one."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import pycurl
from botocore.httpsession import get_cert_path

from cachefs.core.errors import CacheFSError
from connectors.deadline import acquire_in_time
from connectors.fetch.connection_pool import FetchBody
from connectors.fetch.request import HttpRequest, OnConnected
from connectors.fetch.sender import Sender
from connectors.s3.access import Endpoint, Keys, S3Credentials, in_region, resolve_endpoint
from connectors.s3.errors import classify, parse_failure, refuses_keys, wants_region
from connectors.s3.options import S3Options

LISTING_BYTES: Final = 16 << 20  # the largest page; 1,000 keys of 1,024 bytes, encoded, are 4 MiB
_KEY_SAFE: Final = "/-_.~"
_QUERY_SAFE: Final = "-_.~"
_HEAD: Final = {pycurl.NOBODY: 1, pycurl.IGNORE_CONTENT_LENGTH: 1}  # libcurl rejects a bad size
_BUSY: Final = frozenset({0, 408, 429, 500, 502, 503, 504})  # 0: an invalid head
_REGION: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def signed_options(
    endpoint: Endpoint, keys: Keys | None, service: str
) -> tuple[dict[int, Any], tuple[str, ...]]:
    """Returns libcurl's options and the headers of requests to a service of AWS, or to a server
    that speaks its protocol; unsigned without keys."""
    scheme = endpoint.url.partition(":")[0]
    proxy = endpoint.proxies.get(scheme) or endpoint.proxies.get("all", "")
    trusted = get_cert_path(endpoint.verify)
    options: dict[int, Any] = {
        pycurl.PROXY: proxy,  # "": none, even if the environment has one
        pycurl.CAINFO: trusted,
        pycurl.PROXY_CAINFO: trusted,
    }
    if keys is None:
        return options, ()
    options[pycurl.AWS_SIGV4] = f"aws:amz:{endpoint.region}:{service}"
    options[pycurl.USERNAME] = keys.access_key.encode()
    options[pycurl.PASSWORD] = keys.secret_key.encode()
    return options, (f"x-amz-security-token: {keys.token}",) if keys.token else ()


class Requests:
    """Requests for a bucket and its objects, signed by libcurl with one pair of keys."""

    def __init__(self, endpoint: Endpoint, keys: Keys | None, requester_pays: bool) -> None:
        self._url = endpoint.url
        self._options, signed = signed_options(endpoint, keys, "s3")
        headers = ["x-amz-request-payer: requester"] if requester_pays else []
        headers += signed
        self._headers = tuple(headers)

    def get(
        self, key: str, offset: int, size: int, etag: str, answer: Sequence[tuple[str, str]] = ()
    ) -> HttpRequest:
        """Returns the request for a range of an object that has the etag; "": any."""
        headers = (*self._headers, f"Range: bytes={offset}-{offset + size - 1}")
        if etag:
            headers = (*headers, f'If-Match: "{etag}"')
        return HttpRequest(self._url_of(key), headers, size, self._options, answer)

    def stat(self, key: str) -> HttpRequest:
        """Returns the request for the headers of an object; of the bucket where the key is ""."""
        return HttpRequest(self._url_of(key), self._headers, 0, {**self._options, **_HEAD})

    def list(self, prefix: str, token: str, most: int, delimiter: str = "") -> HttpRequest:
        """Returns the request for a page of a listing. `token`: of the former page, or ""."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": prefix, "max-keys": str(most)}
        if token:
            query["continuation-token"] = token
        if delimiter:
            query["delimiter"] = delimiter
        url = f"{self._url}?{_query_text(query)}"
        return HttpRequest(url, self._headers, LISTING_BYTES, self._options, is_limit=True)

    def write(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Sequence[str] = (),
        data: bytes | memoryview = b"",
    ) -> HttpRequest:
        """Returns a request that changes the bucket; `data` is its body."""
        url = f"{self._url_of(key)}?{_query_text(query)}" if query else self._url_of(key)
        options = {**self._options, pycurl.CUSTOMREQUEST: method}
        if method != "DELETE":
            options |= {pycurl.POSTFIELDSIZE_LARGE: len(data), pycurl.POSTFIELDS: bytes(data)}
            headers = (*headers, "Content-Type: application/octet-stream", "Expect:")
        lines = (*self._headers, *headers)
        return HttpRequest(url, lines, LISTING_BYTES, options, is_limit=True, sent_bytes=len(data))

    def _url_of(self, key: str) -> str:
        return f"{self._url}/{quote(key, safe=_KEY_SAFE)}" if key else self._url


def _query_text(query: Mapping[str, str]) -> str:
    """Returns the parameters in the order that a signature needs."""
    return "&".join(f"{n}={quote(v, safe=_QUERY_SAFE)}" for n, v in sorted(query.items()))


class S3Http(Sender):
    """The sender of one source's requests. Thread-safe. The endpoint is resolved at the first
    request; if that fails, at the next one."""

    def __init__(self, bucket: str, options: S3Options, tell_made: OnConnected) -> None:
        super().__init__(tell_made)
        self._bucket = bucket
        self._options = options
        self._credentials = S3Credentials(options)
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None

    def requests(self) -> Requests:
        """Returns a builder of requests, valid as long as the credentials are. Raises
        CredentialsMissing (also for a bad profile), Unreachable (no region found), Unsupported."""
        endpoint = self._endpoint or self._found_endpoint()
        keys = self._credentials.current()
        return Requests(endpoint, keys, self._options.requester_pays)

    def _found_endpoint(self) -> Endpoint:
        acquire_in_time(self._lock, "the region of the bucket")
        try:
            endpoint = self._endpoint or self._find_endpoint()
            self._endpoint = endpoint
            return endpoint
        finally:
            self._lock.release()

    def _find_endpoint(self) -> Endpoint:
        """Returns the endpoint in the region of the bucket. Raises the error of a busy server: a
        guessed region would be kept."""
        endpoint = resolve_endpoint(self._bucket, self._options)
        if self._options.region:
            return endpoint
        # Only AWS reports the region to an anonymous HEAD.
        keys = None if endpoint.aws else self._credentials.current()
        asked = Requests(endpoint, keys, requester_pays=False).stat("")
        reply = self._lanes.get(asked, f"s3://{self._bucket}")
        reply.close()
        region = reply.head.headers.get("x-amz-bucket-region", "").split(",")[0].strip()
        if not region and reply.head.status in _BUSY:
            raise self._refusal(reply, f"s3://{self._bucket}")
        if not _REGION.fullmatch(region):
            return endpoint
        return in_region(endpoint, self._bucket, region, self._options)

    def _refusal(self, reply: FetchBody, path: str) -> CacheFSError:
        failure = parse_failure(
            reply.head.status or 502,  # 0: an invalid head
            reply.refusal,
            reply.head.headers.get("x-amz-request-id", "").split(",")[0],
            reply.head.headers.get("x-amz-bucket-region", ""),
        )
        if refuses_keys(failure):
            self._credentials.forget()
        if wants_region(failure):
            self._endpoint = None  # the bucket may have been made anew in another region
        return classify(failure, path)
