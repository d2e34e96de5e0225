"""The S3 connector: bytes by obstore (large ones over plain HTTP by our own sockets, `Direct`),
listings and HEAD by requests signed with botocore.

Directories exist by the keys below them. mtime has whole seconds in every answer, so that the
fingerprints of a listing and of a HEAD agree; the etag stands without its quotes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from cachefs.core.errors import (
    AccessDenied,
    BadBody,
    CacheFSError,
    CredentialsMissing,
    NotFound,
    OriginError,
    Stale,
)
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.base import (
    Address,
    Ask,
    Asker,
    Body,
    Capabilities,
    Entry,
    Page,
    Request,
    clean_etag,
)
from connectors.bounds import parse_http_date, parse_size, whole_seconds_ns
from connectors.pages import Pages
from connectors.s3_body import CHUNK_BYTES, CountedBody, EmptyBody, HttpBody
from connectors.s3_direct import Direct
from connectors.s3_errors import from_obstore, needs_headers, refuses_certificate
from connectors.s3_http import CONNECT_LIMIT_S, LISTING_BYTES, SILENCE_LIMIT_S, S3Http
from connectors.s3_listing import DIRECTORY, Listing, Progress, directory_page, parse_listing
from connectors.s3_listing import tree_page as page_of_tree
from connectors.s3_options import S3Options
from connectors.s3_sign import Signer
from connectors.whole import joined

if TYPE_CHECKING:
    from obstore import GetResult

PAGE_KEYS: Final = 1000
DIRECT_BYTES: Final = CHUNK_BYTES  # a read of so much is worth a request of our own, see `Direct`
BODY_LIMIT_S: Final = 180.0  # of 8 MiB, at the least rate; obstore has no limit for a part of it
ASKER_S: Final = 60.0  # then names and credentials are looked at again
CREDENTIALS_TTL: Final = timedelta(minutes=5)  # obstore asks botocore's chain again after this
NOT_SAID_NS: Final = -1  # no time of whole seconds
_LAST_CHAR: Final = "\U0010ffff"
_ARCHIVE_CLASSES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_CAPABILITIES: Final = Capabilities(
    ordered_listings=True,
    etags=True,
    conditional_reads=True,
    directories=False,
    posix=False,
    mtime_precision_ns=10**9,
)


class S3Connector:
    """One bucket, or what is below a prefix of it. Resolves nothing before the first request."""

    def __init__(self, bucket: str, prefix: str = "", options: S3Options | None = None) -> None:
        """`prefix` has no leading and no trailing '/'."""
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._http = S3Http(bucket, options or S3Options())
        self._direct = Direct(self._http)
        self._lock = threading.Lock()
        self._store: S3Store | None = None
        # A certificate that signs itself as a CA is in many bundles; obstore's TLS refuses it.
        self._plain_http = False
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    def close(self) -> None:
        self._closed = True
        with self._lock:
            self._store = None
        self._direct.close()
        self._http.close()

    # Names.

    def _key(self, path: bytes) -> str:
        """The key of a path. Raises NotFound for a name that no key has."""
        try:
            text = path.decode()
        except UnicodeDecodeError:
            text = ""
        if not text or not keys.visible_path(path):
            raise NotFound("no such file or directory", path=self._shown(path))
        return self._prefix + text

    def _directory(self, path: bytes) -> str:
        return self._key(path) + "/" if path else self._prefix

    def _shown(self, path: bytes) -> str:
        return f"s3://{self._bucket}/{self._prefix}{path.decode('utf-8', 'backslashreplace')}"

    # Metadata.

    def check(self) -> None:
        if not self._has_keys(self._prefix) and self._prefix:
            self._explain_empty()

    def _has_keys(self, prefix: str) -> bool:
        """Asks for more while a page has none: a store may pass over deleted keys so."""
        query = {"prefix": prefix, "max-keys": "1"}
        progress, token = Progress(), ""
        while True:
            listing = self._list({**query, **_continued(token)})
            if listing.objects or not listing.token:
                return bool(listing.objects)
            progress.check(token, listing)
            token = listing.token

    def _explain_empty(self) -> None:
        where = f"s3://{self._bucket}/{self._prefix}"
        try:
            self._head(self._prefix[:-1])
        except (NotFound, AccessDenied):
            raise NotFound("nothing under this prefix", remedy="check it", path=where) from None
        remedy = "give the prefix above it"
        raise NotFound("this is an object, not a prefix", remedy=remedy, path=where[:-1])

    def stat(self, path: bytes) -> Entry:
        name = path.rpartition(b"/")[2]
        if not path or self._is_directory(path):
            return Entry(name, DIRECTORY)
        return Entry(name, self._head(self._key(path)))

    def _is_directory(self, path: bytes) -> bool:
        try:
            return self._has_keys(self._directory(path))
        except AccessDenied:
            self._head(self._key(path))  # a caller who may read and not list still sees the file
            return False

    def _head(self, key: str) -> Fingerprint:
        try:
            reply = self._http.request("HEAD", key)
        except (AccessDenied, OriginError):
            self._list({"prefix": key, "max-keys": "1"})  # a HEAD's error has no words; this has
            raise
        headers = reply.headers
        reply.close()
        path = f"s3://{self._bucket}/{key}"
        if "content-length" not in headers:
            raise BadBody("a HEAD without a length", path=path)
        size = parse_size(headers["content-length"])
        if size is None:
            raise NotFound("an object of an impossible size is not shown", path=path)
        mtime_ns = parse_http_date(headers.get("last-modified", ""))
        return Fingerprint(Kind.FILE, size, mtime_ns, clean_etag(headers.get("etag", "")))

    def _list(self, query: dict[str, str]) -> Listing:
        query = {"list-type": "2", "encoding-type": "url", **query}
        try:
            return parse_listing(self._http.request("GET", query=query).content(LISTING_BYTES))
        except CacheFSError as error:
            error.path = f"s3://{self._bucket}/{query.get('prefix', '')}"
            raise

    def list_dir(self, path: bytes, after: bytes = b"") -> Iterator[Page]:
        prefix = self._directory(path)
        query = {"prefix": prefix, "delimiter": "/"}
        if after:
            query["start-after"] = prefix + _start_after(after)
        return self._pages(query, lambda listing: directory_page(listing, prefix, after))

    def list_tree(self, path: bytes) -> Iterator[Page]:
        prefix = self._directory(path)
        return self._pages({"prefix": prefix}, lambda listing: page_of_tree(listing, prefix))

    def _pages(self, query: dict[str, str], to_page: Callable[[Listing], Page]) -> Iterator[Page]:
        first = {**query, "max-keys": str(PAGE_KEYS)}
        progress = Progress()

        def fetch(token: str | None) -> tuple[Page, str | None]:
            listing = self._list({**first, **_continued(token or "")})
            page = to_page(listing)
            progress.check(token or "", listing)
            return page, listing.token or None

        return Pages(fetch)

    # Bytes.

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        if offset < 0 or size < 0 or offset + size > version.size:
            raise ValueError(f"{size} bytes at {offset} of a file of {version.size}")
        key = self._key(path)
        if not size:
            self._compare(self._head(key), version, path)
            return EmptyBody()
        if size >= DIRECT_BYTES:
            body = self._read_direct(key, path, offset, size, version)
            if body is not None:
                return body
        reply = self._get(key, path, offset, size, version)
        if reply is None:
            return self._read_http(key, path, offset, size, version)
        chunks = iter(reply.stream(min_chunk_size=CHUNK_BYTES))
        return CountedBody(chunks, size, self._shown(path))

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        size = version.size
        reply = self._get(self._key(path), path, 0, size, version) if size else None
        if reply is None and size:
            return joined(self._read_http(self._key(path), path, 0, size, version))
        if reply is None:
            return joined(self.read(path, 0, size, version))
        try:
            data = memoryview(reply.bytes())
        except (BaseError, OSError) as error:
            raise from_obstore(error, self._shown(path)) from error
        if len(data) != size:
            raise BadBody(f"a body of {len(data)} bytes instead of {size}", path=self._shown(path))
        return data

    def asker(self) -> Asker | None:
        """Over plain HTTP: TLS is better left to the object client."""
        try:
            if not self._direct.serves():
                return None
            signer, address = self._http.signer(), self._http.address()
        except (CacheFSError, OSError, ValueError):  # the last: of a host that no resolver takes
            return None
        until_s = time.monotonic() + ASKER_S
        return lambda path, version: self._ask(signer, address, until_s, path, version)

    def _ask(
        self, signer: Signer, address: Address, until_s: float, path: bytes, version: Fingerprint
    ) -> Ask | None:
        size = version.size
        if not version.etag or not size or time.monotonic() > until_s or self._closed:
            return None
        if not (version.etag.isascii() and version.etag.isprintable()):
            return None  # not in a header
        try:
            head = signer.head(self._key(path), _conditions(0, size, version))
        except NotFound:
            return None
        headers = ("etag", version.etag), ("content-range", f"bytes 0-{size - 1}/{size}")
        return Ask(Request(address, head, size, HTTPStatus.PARTIAL_CONTENT, headers), _ignore)

    def _get(
        self, key: str, path: bytes, offset: int, size: int, version: Fingerprint
    ) -> GetResult | None:
        """A reply of which all but the bytes was compared. None: obstore cannot do it, and a plain
        request can: a key with control characters, a reply without a length or a
        time."""
        if self._plain_http:
            return None
        self._http.credentials.current()  # their absence as our error, not obstore's
        options: dict[str, Any] = {"range": (offset, offset + size)}
        if version.etag:
            options["if_match"] = f'"{version.etag}"'
        store = self._objects()
        try:
            reply = obstore.get(store, key, options=options)  # type: ignore[arg-type]
            meta = reply.meta
        except (ValueError, OverflowError):  # a key with control characters, a time beyond 9999
            return None
        except (BaseError, OSError) as error:
            if needs_headers(error):
                return None
            if isinstance(self._http.endpoint().verify, str) and refuses_certificate(error):
                self._plain_http = True
                return None
            raise self._failed(path, error) from error
        mtime_ns = whole_seconds_ns(meta["last_modified"])
        etag = clean_etag(meta["e_tag"] or "") or self._etag_of(key, mtime_ns, version)
        self._compare(Fingerprint(Kind.FILE, meta["size"], mtime_ns, etag), version, path)
        if tuple(reply.range) != (offset, offset + size):
            raise BadBody("the reply carried another range", path=self._shown(path))
        return reply

    def _failed(self, path: bytes, error: Exception) -> CacheFSError:
        """The class of a failed GET. Expired credentials are looked for again at the next one."""
        found = from_obstore(error, self._shown(path))
        if isinstance(found, CredentialsMissing):
            self._http.credentials.forget()
            with self._lock:
                self._store = None
        return found

    def _compare(self, found: Fingerprint, version: Fingerprint, path: bytes) -> None:
        """Same etag and size; where listings have no etags, same mtime. Raises Stale."""
        by_etag = found.etag == version.etag
        by_time = found.mtime_ns == version.mtime_ns
        if found.size != version.size or not (by_etag if version.etag else by_time):
            raise Stale("the object is another version now", path=self._shown(path))

    def _read_direct(
        self, key: str, path: bytes, offset: int, size: int, version: Fingerprint
    ) -> Body | None:
        """None: another client knows how to."""
        try:
            if not self._direct.serves():
                return None
            reply = self._direct.get(key, _conditions(offset, size, version))
        except CredentialsMissing:
            with self._lock:
                self._store = None
            raise
        if reply is None:
            return None
        try:
            self._compare_range(reply.headers, key, path, offset, size, version)
            if reply.length_bytes is None:  # chunked: another client counts as it reads
                reply.close()
                return self._read_http(key, path, offset, size, version)
            if reply.length_bytes != size:
                cause = f"a body of {reply.length_bytes} bytes instead of {size}"
                raise BadBody(cause, path=self._shown(path))
        except CacheFSError:
            reply.close()
            raise
        return reply.body(self._shown(path))

    def _read_http(
        self, key: str, path: bytes, offset: int, size: int, version: Fingerprint
    ) -> Body:
        headers = _conditions(offset, size, version)
        reply = self._http.request("GET", key, headers=headers)
        try:
            self._compare_range(reply.headers, key, path, offset, size, version)
        except CacheFSError:
            reply.close()
            raise
        return HttpBody(reply, size, self._shown(path))

    def _compare_range(
        self,
        headers: Mapping[str, str],
        key: str,
        path: bytes,
        offset: int,
        size: int,
        version: Fingerprint,
    ) -> None:
        """Raises unless they are those of what was asked for."""
        content_range = headers.get("content-range", "")
        if not content_range:
            raise OriginError("the server ignores ranges", path=self._shown(path))
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":
            raise OriginError("the server sends other bytes than it has", path=self._shown(path))
        total = content_range.rpartition("/")[2]
        if total != str(version.size):
            raise Stale("the object is another version now", path=self._shown(path))
        mtime_ns = parse_http_date(headers.get("last-modified", ""), NOT_SAID_NS)
        etag = clean_etag(headers.get("etag", "")) or self._etag_of(key, mtime_ns, version)
        self._compare(Fingerprint(Kind.FILE, version.size, mtime_ns, etag), version, path)
        if content_range != f"bytes {offset}-{offset + size - 1}/{total}":
            raise BadBody("the reply carried another range", path=self._shown(path))

    def _etag_of(self, key: str, mtime_ns: int, version: Fingerprint) -> str:
        """Asks for the etag of a reply that lacks it and has this mtime; "" where none is proven.
        The object of the version, of the reply and of the HEAD that follows it has one mtime: so
        it was not written in between, and the etag that the HEAD says is that of the reply."""
        if not version.etag or mtime_ns != version.mtime_ns:
            return ""
        now = self._head(key)
        return now.etag if now.mtime_ns == mtime_ns and now.size == version.size else ""

    def _objects(self) -> S3Store:
        with self._lock:
            if self._store is None:
                self._store = self._open_store()
            return self._store

    def _open_store(self) -> S3Store:
        endpoint, options = self._http.endpoint(), self._http.options
        client: dict[str, Any] = {
            "allow_http": endpoint.url.startswith("http://"),
            "connect_timeout": timedelta(seconds=CONNECT_LIMIT_S),
            "read_timeout": timedelta(seconds=SILENCE_LIMIT_S),
            "timeout": timedelta(seconds=BODY_LIMIT_S),
        }
        proxy = endpoint.proxies.get(endpoint.url.partition(":")[0])
        if proxy:
            client["proxy_url"] = proxy
        if isinstance(endpoint.verify, str):
            with open(endpoint.verify, "rb") as bundle:
                client["root_certificate"] = bundle.read()
        url = endpoint.url if endpoint.virtual else endpoint.service_url
        return S3Store(
            self._bucket,
            endpoint=url,
            aws_endpoint_url_s3=url,  # obstore takes it from the environment, and first
            region=endpoint.region,
            virtual_hosted_style_request=endpoint.virtual,
            skip_signature=options.anonymous,
            request_payer=options.requester_pays,
            credential_provider=None if options.anonymous else self._provide,
            client_options=client,  # type: ignore[arg-type]
            retry_config={"max_retries": 0},
        )

    def _provide(self) -> Any:
        """Credentials as obstore asks for them, from a thread of its own."""
        found = self._http.credentials.current()
        assert found is not None, "an anonymous store asks for no credentials"
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": datetime.now(UTC) + CREDENTIALS_TTL,
        }


def _ignore(size_bytes: int, error: str) -> None:
    """Nothing here counts."""


def _conditions(offset: int, size: int, version: Fingerprint) -> dict[str, str]:
    """The headers of a ranged request for one version."""
    headers = {"Range": f"bytes={offset}-{offset + size - 1}"}
    if version.etag:
        headers["If-Match"] = f'"{version.etag}"'
    return headers


def _continued(token: str) -> dict[str, str]:
    """How to ask for the page that a token names; "": the first one."""
    return {"continuation-token": token} if token else {}


def _start_after(after: bytes) -> str:
    """The StartAfter of an order key. After a directory every key below it is skipped: what is
    listed once more all the same (a server decides whether a common prefix is "after") is dropped
    by `directory_page`."""
    try:
        text = after.decode()
    except UnicodeDecodeError as error:
        return after[: error.start].decode()
    return text + _LAST_CHAR if text.endswith("/") else text
