"""Signed requests to one bucket. Listings and HEAD are sent here; a GET of an object is described
for `connectors.fetch`, which moves bytes. No retries; every failure is one of our errors."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn
from urllib.parse import quote

import pycurl
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.httpsession import URLLib3Session, get_cert_path
from urllib3.exceptions import HTTPError

from cachefs.core.errors import CredentialsMissing, OriginError
from connectors.fetch.exchange import CONNECT_LIMIT_S, ERROR_BYTES
from connectors.fetch.lanes import SILENCE_LIMIT_S
from connectors.fetch.request import Get
from connectors.s3_access import Endpoint, Keys, S3Credentials, in_region, resolve_endpoint
from connectors.s3_errors import classify, from_botocore, parse_failure
from connectors.s3_options import S3Options

CONNECTIONS: Final = 64
LISTING_BYTES: Final = 16 << 20  # of a page: 1,000 keys of 1,024 bytes, encoded, make 4 MiB
PIECE_BYTES: Final = 64 << 10
_KEY_SAFE: Final = "/-_.~"
_QUERY_SAFE: Final = "-_.~"
_REGION: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Reply:
    """A reply. The body is read by `content` or `start`, or by pieces; `close` drops what is
    left."""

    def __init__(self, response: Any, path: str) -> None:
        self._response = response
        self._path = path
        self.headers: Mapping[str, str] = response.headers

    def content(self, limit_bytes: int) -> bytes:
        """Returns the whole body. Raises OriginError for a larger one."""
        data = self.start(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise OriginError(f"a reply of more than {limit_bytes >> 20} MiB", path=self._path)
        return data

    def start(self, limit_bytes: int) -> bytes:
        """Returns the body up to a limit; what comes behind it is dropped."""
        data = bytearray()
        for piece in self.pieces(min(PIECE_BYTES, limit_bytes)):
            data += piece
            if len(data) >= limit_bytes:
                self.close()
                break
        return bytes(data[:limit_bytes])

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        with self._classified():
            yield from self._response.raw.stream(piece_bytes, decode_content=False)

    def close(self) -> None:
        """From any thread. The shutdown ends a read in another thread, which `close` of the
        response would wait for."""
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # the connection is free again
            self._response.raw.shutdown()
        self._response.raw.close()

    @contextlib.contextmanager
    def _classified(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, HTTPError) as error:
            raise from_botocore(error, self._path) from error


class S3Http:
    """The requests of one source. Thread-safe. The endpoint is resolved at the first request, and
    again after a failure to do so."""

    def __init__(self, bucket: str, options: S3Options) -> None:
        self.bucket = bucket
        self.options = options
        self.credentials = S3Credentials(options)
        self._lock = threading.Lock()
        self._opened: tuple[Endpoint, Any] | None = None

    def endpoint(self) -> Endpoint:
        """Raises CredentialsMissing (a bad profile), Unreachable (no region found), Unsupported."""
        return self._open()[0]

    def _open(self) -> tuple[Endpoint, Any]:
        with self._lock:
            if self._opened is None:
                endpoint = resolve_endpoint(self.bucket, self.options)
                session = _open_session(endpoint)
                if not self.options.region:
                    endpoint = self._discover_region(session, endpoint)
                self._opened = endpoint, session
            return self._opened

    def _discover_region(self, session: Any, endpoint: Endpoint) -> Endpoint:
        request = AWSRequest(method="HEAD", url=endpoint.url)
        if not endpoint.aws:  # an anonymous HEAD tells the region on AWS only
            self._sign(request, endpoint.region)
        headers = _send(session, request, f"s3://{self.bucket}").headers
        region = headers.get("x-amz-bucket-region", "").split(",")[0].strip()
        if not _REGION.fullmatch(region):
            return endpoint
        return in_region(endpoint, self.bucket, region, self.options)

    def request(self, method: str, key: str = "", query: Mapping[str, str] | None = None) -> Reply:
        """One request for the bucket (key "") or a key. Raises the typed errors for a reply that
        is not 2xx; the caller reads or closes the reply."""
        _, session = self._open()
        path = f"s3://{self.bucket}/{key}"
        response = _send(session, self._signed(method, key, query), path)
        if not 200 <= response.status_code < 300:
            content = Reply(response, path).start(ERROR_BYTES)
            self.refused(response.status_code, response.headers, content, path)
        return Reply(response, path)

    def _signed(self, method: str, key: str, query: Mapping[str, str] | None) -> AWSRequest:
        """Returns the request with its signature, if it gets one."""
        endpoint = self.endpoint()
        url = f"{endpoint.url}/{quote(key, safe=_KEY_SAFE)}" if key else endpoint.url
        if query:
            pairs = sorted(query.items())
            url += "?" + "&".join(
                f"{name}={quote(value, safe=_QUERY_SAFE)}" for name, value in pairs
            )
        request = AWSRequest(method=method, url=url)
        if self.options.requester_pays:
            request.headers["x-amz-request-payer"] = "requester"
        self._sign(request, endpoint.region)
        return request

    def gets(self) -> Gets:
        """What all GET requests for objects have in common; holds as long as the credentials do.
        Raises what `endpoint` does, CredentialsMissing."""
        return Gets(self.endpoint(), self.credentials.current(), self.options.requester_pays)

    def _sign(self, request: AWSRequest, region: str) -> None:
        keys = self.credentials.current()
        if keys is not None:
            S3SigV4Auth(_Frozen(keys), "s3", region).add_auth(request)

    def refused(
        self, status: int, headers: Mapping[str, str], content: bytes, path: str
    ) -> NoReturn:
        """Raises what a reply that is not 2xx means. Credentials that were refused are looked for
        again at the next request."""
        failure = parse_failure(
            status,
            content,
            headers.get("x-amz-request-id", "").split(",")[0],
            headers.get("x-amz-bucket-region", ""),
        )
        error = classify(failure, path)
        if isinstance(error, CredentialsMissing):
            self.credentials.forget()
        raise error

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()


class Gets:
    """GET requests for the objects of a bucket, signed by libcurl with one pair of keys."""

    def __init__(self, endpoint: Endpoint, keys: Keys | None, requester_pays: bool) -> None:
        scheme = endpoint.url.partition(":")[0]
        proxy = endpoint.proxies.get(scheme) or endpoint.proxies.get("all", "")
        trusted = get_cert_path(endpoint.verify)
        self._url = endpoint.url
        self._options: dict[int, Any] = {
            pycurl.PROXY: proxy,  # "": none, whatever the environment says
            pycurl.CAINFO: trusted,
            pycurl.PROXY_CAINFO: trusted,
        }
        headers = ["x-amz-request-payer: requester"] if requester_pays else []
        if keys is not None:
            self._options[pycurl.AWS_SIGV4] = f"aws:amz:{endpoint.region}:s3"
            self._options[pycurl.USERNAME] = keys.access_key.encode()
            self._options[pycurl.PASSWORD] = keys.secret_key.encode()
            headers += [f"x-amz-security-token: {keys.token}"] if keys.token else []
        self._headers = tuple(headers)

    def get(
        self,
        key: str,
        offset: int,
        size: int,
        etag: str,
        answer: tuple[tuple[str, str], ...] = (),
    ) -> Get:
        """Returns the request for a range of an object that has the etag; "": any."""
        headers = (*self._headers, f"Range: bytes={offset}-{offset + size - 1}")
        if etag:
            headers = (*headers, f'If-Match: "{etag}"')
        url = f"{self._url}/{quote(key, safe=_KEY_SAFE)}"
        return Get(url, headers, size, self._options, answer)


class _Frozen:
    """Keys under the names that botocore's signer reads."""

    def __init__(self, keys: tuple[str, str, str | None]) -> None:
        self.access_key, self.secret_key, self.token = keys


def _open_session(endpoint: Endpoint) -> Any:
    return URLLib3Session(
        verify=endpoint.verify,
        proxies=endpoint.proxies,
        timeout=(CONNECT_LIMIT_S, SILENCE_LIMIT_S),
        max_pool_connections=CONNECTIONS,
    )


def _send(session: Any, request: AWSRequest, path: str) -> Any:
    prepared = request.prepare()
    prepared.stream_output = True
    try:
        return session.send(prepared)
    except (BotoCoreError, HTTPError) as error:
        raise from_botocore(error, path) from error
