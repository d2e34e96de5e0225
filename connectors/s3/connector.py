"""The S3 connector. libcurl sends its requests (`connectors.s3.http`).

Directories exist by the keys below them. mtime has whole seconds in every entry, so that the
fingerprints of a listing and of a HEAD agree; the etag has no quotes.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from cachefs.core.errors import AccessDenied, BadBody, CacheFSError, NotFound, OriginError, Stale
from cachefs.core.model import Fingerprint, Kind
from connectors.base import clean_etag
from connectors.bodies import read_whole_body
from connectors.bounds import parse_http_date, parse_size
from connectors.capabilities import Capabilities, Identity
from connectors.fetch.request import Head, OnConnected, ignore_connections
from connectors.objects.keyed import KeyedConnector
from connectors.range_reply import check_bytes, check_object
from connectors.s3.directory_pages import Parsed
from connectors.s3.errors import SHORTER, TOO_LONG
from connectors.s3.http import Requests, S3Http
from connectors.s3.listing import Listing, listing_of, next_token, parse_listing
from connectors.s3.listing_xml import page_texts
from connectors.s3.options import S3Options

MAX_KEY_BYTES: Final = 1024  # of Amazon's; some servers have longer ones
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


class S3Connector(KeyedConnector[Requests]):
    """A bucket, or a prefix of it. Resolves nothing before the first request."""

    _declared: ClassVar[Capabilities] = READING
    _version_header = "etag"

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        options: S3Options | None = None,
        tell_made: OnConnected = ignore_connections,
    ) -> None:
        """See `KeyedConnector`."""
        options = options or S3Options()
        capabilities = msgspec.structs.replace(
            self._declared, ordered_listings=options.ordered_listings
        )
        http = S3Http(bucket, options, tell_made)
        where, self._bucket = f"s3://{bucket}", bucket
        super().__init__(where, prefix, capabilities, http, http.requests, tell_made)
        self._checks_order = options.ordered_listings

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

    def _stat(self, key: str) -> Fingerprint:
        path = f"{self._where}/{key}"
        try:
            reply = self._http.send(self._api().stat(key), path)
        except (AccessDenied, OriginError) as error:
            self._list(key, "", 1)  # its error has a cause, a HEAD's has none
            if error.code == OriginError.code and len(key.encode()) > MAX_KEY_BYTES:
                raise NotFound(TOO_LONG, remedy=SHORTER, path=path) from error
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

    def _list(self, prefix: str, token: str, most: int, delimiter: str = "") -> Listing:
        path = f"{self._where}/{prefix}"
        try:
            request = self._api().list(prefix, token, most, delimiter)
            return parse_listing(bytes(read_whole_body(self._http.send(request, path))))
        except CacheFSError as error:
            error.path = path
            raise

    def _parsed(self, body: bytes) -> Parsed:
        texts = page_texts(body)
        return next_token(texts), lambda: listing_of(texts)

    def _check(
        self, head: Head, key: str, path: bytes, offset: int, size: int, version: Fingerprint
    ) -> None:
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
        now = self._stat(key)
        return now.etag if now.mtime_ns == mtime_ns and now.size == version.size else ""
