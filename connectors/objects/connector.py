"""The connector of an object store whose replies name the version of their bytes, as `ObjectStore`
describes it. libcurl sends its requests.

Directories exist by the keys below them. The identity of a file is its `Fingerprint.etag`: every
read names it, and every reply is compared with it. A store may answer a read of an old version as
if the object were deleted, or the reverse, so a request for the metadata decides between the two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from msgspec import structs

from cachefs.core.errors import AccessDenied, CacheFSError, NotFound, Stale
from cachefs.core.model import Fingerprint
from connectors import keys
from connectors.base import Body, Entry, Page, check_range, clean_etag
from connectors.bodies import EmptyBody, read_whole_body
from connectors.capabilities import Capabilities
from connectors.fetch.connection_pool import FetchBody
from connectors.fetch.request import (
    Head,
    HttpRequest,
    OnConnected,
    RangeRequest,
    content_range,
    ignore_connections,
)
from connectors.objects.api import ObjectApi, ObjectStore
from connectors.objects.http import ObjectHttp
from connectors.page_replies import PageReplies
from connectors.pages import Pages
from connectors.range_reply import check_bytes, check_object
from connectors.s3.directory_pages import DirectoryPages, Parsed
from connectors.s3.listing import DIRECTORY, Listing, ListingProgress, first_names
from connectors.small_read_choice import SmallReadChoice

PAGE_KEYS: Final = 1000
STAT_KEYS: Final = 2  # an object, and the first name behind it
UNORDERED_KEYS: Final = 16  # all names that begin as most others do
API_KEPT_S: Final = 60.0  # small reads reuse the credentials


class ObjectConnector:
    """A container of a store, or a prefix of it. Sends nothing before the first call."""

    def __init__(
        self, store: ObjectStore, prefix: str = "", tell_made: OnConnected = ignore_connections
    ) -> None:
        """`prefix` has no leading and no trailing '/'. Any thread may call `tell_made` with new
        connections."""
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""
        self._tell_made = tell_made
        self._http = ObjectHttp(store, tell_made)
        self._turns: SmallReadChoice[ObjectApi] = SmallReadChoice(API_KEPT_S, time.monotonic)

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

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
        key = self._prefix + text
        if not text or not keys.visible_path(path) or not self._store.can_be_key(key):
            raise NotFound("no such file or directory", path=self._shown(path))
        return key

    def _directory(self, path: bytes) -> str:
        return self._key(path) + "/" if path else self._prefix

    def _shown(self, path: bytes) -> str:
        return f"{self._store.where}/{self._prefix}{path.decode('utf-8', 'backslashreplace')}"

    # Metadata.

    def check(self) -> None:
        if not self._has_keys(self._prefix) and self._prefix:
            self._explain_empty()

    def _has_keys(self, prefix: str) -> bool:
        """Returns whether a key has the prefix. Fetches further pages while a page is empty."""
        progress, token = ListingProgress(), ""
        while True:
            listing = self._list(prefix, token, 1)
            if listing.objects or listing.prefixes or not listing.token:
                return bool(listing.objects or listing.prefixes)
            progress.check(token, listing)
            token = listing.token

    def _explain_empty(self) -> None:
        where = f"{self._store.where}/{self._prefix}"
        try:
            found = self._stat(self._prefix[:-1])
        except (NotFound, AccessDenied):
            raise NotFound("nothing under this prefix", remedy="check it", path=where) from None
        if found is DIRECTORY:
            return
        remedy = "give the prefix above it"
        raise NotFound("this is an object, not a prefix", remedy=remedy, path=where[:-1])

    def stat(self, path: bytes) -> Entry:
        """Returns the entry of a path, nearly always by one request: a listing of its first names
        has the object, and shows whether there are keys below it."""
        name = path.rpartition(b"/")[2]
        if not path:
            return Entry(name, DIRECTORY)
        key, is_ordered = self._key(path), self.capabilities.ordered_listings
        try:
            listing = self._list(key, "", STAT_KEYS if is_ordered else UNORDERED_KEYS, "/")
        except AccessDenied:
            return Entry(name, self._stat(key))  # a caller who may read and not list sees the file
        file, has_keys_below = first_names(listing, key, is_ordered=is_ordered)
        if has_keys_below is None:
            has_keys_below = self._has_keys(key + "/")
        if has_keys_below:
            return Entry(name, DIRECTORY)
        # The error of a name that the listing lacks is that of a request for it.
        is_known = file is not None and (file.size or not self._store.marks_directories)
        return Entry(name, file if file is not None and is_known else self._stat(key))

    def _stat(self, key: str) -> Fingerprint:
        path = f"{self._store.where}/{key}"
        reply = self._http.send(self._store.api().stat(key), path)
        body = bytes(read_whole_body(reply))  # to its end, so that the connection is kept
        try:
            found = self._store.parse_stat(reply.head, body)
        except CacheFSError as error:
            error.path = path
            raise
        if found is None:
            raise NotFound("an object of an impossible size is not shown", path=path)
        return found

    def _list(self, prefix: str, token: str, most: int, delimiter: str = "") -> Listing:
        path = f"{self._store.where}/{prefix}"
        request = self._store.api().list(prefix, token, most, delimiter)
        try:
            return self._store.parse_listing(bytes(read_whole_body(self._http.send(request, path))))
        except NotFound as error:
            raise self._store.no_container() from error
        except CacheFSError as error:
            error.path = path
            raise

    def list_dir(self, path: bytes) -> Iterator[Page]:
        prefix = self._directory(path)
        where = f"{self._store.where}/{prefix}"
        replies = PageReplies(
            self._http, lambda token: self._store.api().list(prefix, token, PAGE_KEYS, "/"), where
        )
        pages = DirectoryPages(prefix, where, replies, self._parsed)

        def fetch(token: str | None) -> tuple[Page, str | None]:
            try:
                return pages.fetch(token)
            except NotFound as error:
                raise self._store.no_container() from error

        return Pages(fetch, pages.close)

    def _parsed(self, body: bytes) -> Parsed:
        listing = self._store.parse_listing(body)
        return listing.token, lambda: listing

    # Bytes.

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        check_range(offset, size, version)
        key = self._key(path)
        if not size:
            self._compare(self._stat(key), version, path)
            return EmptyBody()
        api = self._store.api()
        body = self._open(api.get(key, offset, size, version.etag), key, path)
        try:
            self._check(body.head, path, offset, size, version)
        except BaseException:
            body.close()
            raise
        self._turns.succeeded(api)
        return body

    def _open(self, request: HttpRequest, key: str, path: bytes) -> FetchBody:
        """Returns the reply. Raises NotFound for a deleted object, Stale for another
        version."""
        try:
            return self._http.send(request, self._shown(path))
        except (NotFound, Stale):
            self._stat(key)  # raises NotFound
            raise Stale("the object is another version now", path=self._shown(path)) from None

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return read_whole_body(self.read(path, 0, version.size, version))

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        """Returns a request, or None; see `Connector` and `connectors.small_read_choice`."""
        api = self._turns.current()
        if api is None or not size or not version.etag or clean_etag(version.etag) != version.etag:
            return None
        try:
            key = self._key(path)
        except NotFound:
            return None
        header = self._store.version_header
        range_text = content_range(offset, size, version.size)
        answer = (header, version.etag), ("content-range", range_text)
        request = structs.replace(api.get(key, offset, size, version.etag), answer=answer)
        return RangeRequest(
            request, lambda _, error: self._turns.ended(api, error), self._tell_made
        )

    def _check(self, head: Head, path: bytes, offset: int, size: int, version: Fingerprint) -> None:
        """Raises unless the reply matches the request and the version."""
        shown = self._shown(path)
        check_object(head, version, shown)
        if clean_etag(head.headers.get(self._store.version_header, "")) != version.etag:
            raise Stale("the object is another version now", path=shown)
        check_bytes(head, offset, size, version, shown)

    def _compare(self, found: Fingerprint, version: Fingerprint, path: bytes) -> None:
        if (found.size, found.etag) != (version.size, version.etag):
            raise Stale("the object is another version now", path=self._shown(path))
