"""The S3 connector. libcurl sends its requests (`connectors.s3.http`).

Directories exist by the keys below them. mtime has whole seconds in every entry, so that the
fingerprints of a listing and of a HEAD agree; the etag has no quotes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar, Final

import msgspec

from cachefs.core.errors import (
    AccessDenied,
    BadBody,
    CacheFSError,
    NotFound,
    OriginError,
    Stale,
)
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.base import Body, Entry, Page, check_range, clean_etag
from connectors.bodies import EmptyBody, read_whole_body
from connectors.bounds import parse_http_date, parse_size
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import (
    Head,
    HttpRequest,
    OnConnected,
    RangeRequest,
    content_range,
    ignore_connections,
)
from connectors.page_replies import PageReplies
from connectors.pages import Pages
from connectors.range_reply import check_bytes, check_object
from connectors.s3.directory_pages import DirectoryPages, Parsed
from connectors.s3.http import Requests, S3Http
from connectors.s3.listing import (
    DIRECTORY,
    Listing,
    ListingProgress,
    first_names,
    listing_of,
    next_token,
    parse_listing,
)
from connectors.s3.listing_xml import page_texts
from connectors.s3.options import S3Options
from connectors.small_read_choice import SmallReadChoice

PAGE_KEYS: Final = 1000
STAT_KEYS: Final = 2  # an object, and the first name behind it
UNORDERED_KEYS: Final = 16  # all names that begin as most others do
REQUESTS_S: Final = 60.0  # small reads reuse the region and the credentials
NO_TIME_NS: Final = -1  # no Last-Modified; never equal to a time of whole seconds
READING: Final = Capabilities(
    ordered_listings=True,
    directories=False,
    posix_attributes=False,
    symlinks=False,
    identity=Identity.CONTENT,
    refuses_other_versions=True,
    mtime_precision_ns=10**9,
    requests=True,
)


class S3Connector:
    """A bucket, or a prefix of it. Resolves nothing before the first request."""

    _declared: ClassVar[Capabilities] = READING

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        options: S3Options | None = None,
        tell_made: OnConnected = ignore_connections,
    ) -> None:
        """`prefix` has no leading and no trailing '/'. Any thread may call `tell_made` with new
        connections."""
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._tell_made = tell_made
        options = options or S3Options()
        self._capabilities = msgspec.structs.replace(
            self._declared, ordered_listings=options.ordered_listings
        )
        self._http = S3Http(bucket, options, tell_made)
        self._turns: SmallReadChoice[Requests] = SmallReadChoice(REQUESTS_S, time.monotonic)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def close(self) -> None:
        self._turns.close()
        self._http.close()

    # Names.

    def _key(self, path: bytes) -> str:
        """Returns the key of a path. Raises NotFound for a name that no key has."""
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
        try:
            is_empty = not self._has_keys(self._prefix)
        except NotFound as err:
            if err.remedy:
                raise
            cause = "the endpoint does not answer as a server of S3 does (404 for a listing)"
            raise NotFound(cause, remedy="check its URL", path=err.path) from err
        if is_empty and self._prefix:
            self._explain_empty()

    def _has_keys(self, prefix: str) -> bool:
        """Returns whether a key has the prefix. Fetches further pages while a page is empty, as a
        store may send them for deleted keys."""
        query = {"prefix": prefix, "max-keys": "1"}
        progress, token = ListingProgress(), ""
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
        """Returns the entry of a path, nearly always by one request: a listing of its first names
        has the object, and shows whether there are keys below it."""
        name = path.rpartition(b"/")[2]
        if not path:
            return Entry(name, DIRECTORY)
        key, is_ordered = self._key(path), self._capabilities.ordered_listings
        most = STAT_KEYS if is_ordered else UNORDERED_KEYS
        try:
            listing = self._list({"prefix": key, "delimiter": "/", "max-keys": str(most)})
        except AccessDenied:
            # A caller who may read and not list still sees the file.
            return Entry(name, self._head(key))
        file, has_keys_below = first_names(listing, key, is_ordered=is_ordered)
        if has_keys_below is None:
            has_keys_below = self._has_keys(key + "/")
        if has_keys_below:
            return Entry(name, DIRECTORY)
        # The HEAD of a name that the listing lacks has the error: absent, or refused.
        return Entry(name, file or self._head(key))

    def _head(self, key: str) -> Fingerprint:
        path = f"s3://{self._bucket}/{key}"
        try:
            reply = self._http.send(self._http.requests().head(key), path)
        except (AccessDenied, OriginError):
            self._list({"prefix": key, "max-keys": "1"})  # its error has a cause, a HEAD's has none
            raise
        read_whole_body(reply)  # to its end, so that the connection is kept
        headers = reply.head.headers
        if "content-length" not in headers:
            raise BadBody("the reply to a HEAD has no Content-Length", path=path)
        size = parse_size(headers["content-length"])
        if size is None:
            raise NotFound("an object of an impossible size is not shown", path=path)
        mtime_ns = parse_http_date(headers.get("last-modified", ""))
        return Fingerprint(Kind.FILE, size, mtime_ns, clean_etag(headers.get("etag", "")))

    def _list(self, query: dict[str, str]) -> Listing:
        path = f"s3://{self._bucket}/{query.get('prefix', '')}"
        try:
            page = read_whole_body(self._http.send(self._http.requests().listing(query), path))
            return parse_listing(bytes(page))
        except CacheFSError as error:
            error.path = path
            raise

    def list_dir(self, path: bytes) -> Iterator[Page]:
        prefix = self._directory(path)
        query = {"prefix": prefix, "delimiter": "/", "max-keys": str(PAGE_KEYS)}

        def request(token: str) -> HttpRequest:
            return self._http.requests().listing({**query, **_continued(token)})

        where = f"s3://{self._bucket}/{prefix}"
        replies = PageReplies(self._http, request, where)
        checks_order = self._capabilities.ordered_listings
        pages = DirectoryPages(prefix, where, replies, _parsed, checks_order=checks_order)
        return Pages(pages.fetch, pages.close)

    # Bytes.

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        check_range(offset, size, version)
        key = self._key(path)
        if not size:
            self._compare(self._head(key), version, path)
            return EmptyBody()
        requests = self._http.requests()
        request = requests.get(key, offset, size, version.etag)
        body = self._http.send(request, self._shown(path))
        try:
            self._check(body.head, key, path, offset, size, version)
        except BaseException:
            body.close()
            raise
        self._turns.succeeded(requests)
        return body

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return read_whole_body(self.read(path, 0, version.size, version))

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        """Returns a request, or None; see `Connector` and `connectors.small_read_choice`."""
        requests = self._turns.current()
        if requests is None or not size or not version.etag:
            return None
        if clean_etag(version.etag) != version.etag:
            return None
        try:
            key = self._key(path)
        except NotFound:
            return None
        range_text = content_range(offset, size, version.size)
        answer = ("etag", version.etag), ("content-range", range_text)
        get = requests.get(key, offset, size, version.etag, answer)
        return RangeRequest(
            get, lambda _, error: self._turns.ended(requests, error), self._tell_made
        )

    def _check(
        self, head: Head, key: str, path: bytes, offset: int, size: int, version: Fingerprint
    ) -> None:
        """Raises unless the reply matches the request and the version."""
        shown = self._shown(path)
        check_object(head, version, shown)
        mtime_ns = parse_http_date(head.headers.get("last-modified", ""), NO_TIME_NS)
        etag = clean_etag(head.headers.get("etag", "")) or self._etag_of(key, mtime_ns, version)
        self._compare(Fingerprint(Kind.FILE, version.size, mtime_ns, etag), version, path)
        check_bytes(head, offset, size, version, shown)

    def _compare(self, found: Fingerprint, version: Fingerprint, path: bytes) -> None:
        """Raises Stale unless size and etag are equal (size and mtime if there is no etag)."""
        by_etag = found.etag == version.etag
        by_time = found.mtime_ns == version.mtime_ns
        if found.size != version.size or not (by_etag if version.etag else by_time):
            raise Stale("the object is another version now", path=self._shown(path))

    def _etag_of(self, key: str, mtime_ns: int, version: Fingerprint) -> str:
        """Returns the etag of a reply that lacks it and has this mtime, from a HEAD; "" if it is
        not proven. Equal mtimes of the version, the reply and the HEAD prove that the object was
        not written in between."""
        if not version.etag or mtime_ns != version.mtime_ns:
            return ""
        now = self._head(key)
        return now.etag if now.mtime_ns == mtime_ns and now.size == version.size else ""


def _parsed(body: bytes) -> Parsed:
    """Parses a page for `DirectoryPages`."""
    texts = page_texts(body)
    return next_token(texts), lambda: listing_of(texts)


def _continued(token: str) -> dict[str, str]:
    """Returns the query parameters for the page of a token; "": the first page."""
    return {"continuation-token": token} if token else {}
