"""The connector of an object store whose replies name the version of their bytes, as `ObjectStore`
describes it. libcurl sends its requests.

Directories exist by the keys below them. The identity of a file is its `Fingerprint.etag`: every
read names it, and every reply is compared with it. A store may answer a read of an old version as
if the object were deleted, or the reverse, so a request for the metadata decides between the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from cachefs.core.errors import CacheFSError, NotFound, Stale
from cachefs.core.model import Fingerprint
from connectors.base import Page, clean_etag
from connectors.bodies import read_whole_body
from connectors.fetch.connection_pool import FetchBody
from connectors.fetch.request import Head, HttpRequest, OnConnected, ignore_connections
from connectors.objects.api import ObjectApi, ObjectStore
from connectors.objects.http import ObjectHttp
from connectors.objects.keyed import KeyedConnector
from connectors.pages import Pages
from connectors.range_reply import check_bytes, check_object
from connectors.s3.directory_pages import Parsed
from connectors.s3.listing import Listing


class ObjectConnector(KeyedConnector[ObjectApi]):
    """A container of a store, or a prefix of it."""

    def __init__(
        self, store: ObjectStore, prefix: str = "", tell_made: OnConnected = ignore_connections
    ) -> None:
        """See `KeyedConnector`."""
        http = ObjectHttp(store, tell_made)
        super().__init__(store.where, prefix, store.capabilities, http, store.api, tell_made)
        self._store = store
        self._version_header = store.version_header

    def _can_be_key(self, key: str) -> bool:
        return self._store.can_be_key(key)

    def _may_mark(self, file: Fingerprint) -> bool:
        return not file.size and self._store.marks_directories

    def _stat(self, key: str) -> Fingerprint:
        path = f"{self._where}/{key}"
        reply = self._http.send(self._api().stat(key), path)
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
        path = f"{self._where}/{prefix}"
        request = self._api().list(prefix, token, most, delimiter)
        try:
            return self._store.parse_listing(bytes(read_whole_body(self._http.send(request, path))))
        except NotFound as error:
            raise self._store.no_container() from error
        except CacheFSError as error:
            error.path = path
            raise

    def list_dir(self, path: bytes) -> Iterator[Page]:
        pages = self._pages(self._directory(path))

        def fetch(token: str | None) -> tuple[Page, str | None]:
            try:
                return pages.fetch(token)
            except NotFound as error:
                raise self._store.no_container() from error

        return Pages(fetch, pages.close)

    def _parsed(self, body: bytes) -> Parsed:
        listing = self._store.parse_listing(body)
        return listing.token, lambda: listing

    def _open(self, request: HttpRequest, key: str, path: bytes) -> FetchBody:
        """Returns the reply. Raises NotFound for a deleted object, Stale for another
        version."""
        try:
            return self._http.send(request, self._shown(path))
        except (NotFound, Stale):
            self._stat(key)  # raises NotFound
            raise Stale("the object is another version now", path=self._shown(path)) from None

    def _check(
        self, head: Head, key: str, path: bytes, offset: int, size: int, version: Fingerprint
    ) -> None:
        shown = self._shown(path)
        check_object(head, version, shown)
        if clean_etag(head.headers.get(self._version_header, "")) != version.etag:
            raise Stale("the object is another version now", path=shown)
        check_bytes(head, offset, size, version, shown)

    def _compare(self, found: Fingerprint, version: Fingerprint, path: bytes) -> None:
        if (found.size, found.etag) != (version.size, version.etag):
            raise Stale("the object is another version now", path=self._shown(path))
