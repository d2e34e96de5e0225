"""What the connectors of stores of keys share. Directories exist by the keys below them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from cachefs.core.errors import AccessDenied, NotFound
from cachefs.core.model import Fingerprint
from connectors import keys
from connectors.base import Body, Entry, Page, check_range, clean_etag
from connectors.bodies import EmptyBody, read_whole_body
from connectors.capabilities import Capabilities
from connectors.fetch.connection_pool import FetchBody
from connectors.fetch.request import Head, HttpRequest, OnConnected, RangeRequest, content_range
from connectors.fetch.sender import Sender
from connectors.page_replies import PageReplies
from connectors.pages import Pages
from connectors.s3.directory_pages import DirectoryPages, Parsed
from connectors.s3.listing import DIRECTORY, Listing, ListingProgress, first_names
from connectors.small_read_choice import SmallReadChoice

PAGE_KEYS: Final = 1000
STAT_KEYS: Final = 2  # an object, and the first name behind it
UNORDERED_KEYS: Final = 16  # all names that begin as most others do
API_KEPT_S: Final = 60.0  # small reads reuse the credentials


class KeyedApi(Protocol):
    """Builds the requests to one container (a bucket), with the credentials of one moment."""

    def list(self, prefix: str, token: str, most: int, delimiter: str = "") -> HttpRequest:
        """Returns the request for a page of a listing. `token`: of the former page, or ""."""

    def get(
        self, key: str, offset: int, size: int, etag: str, answer: Sequence[tuple[str, str]] = ()
    ) -> HttpRequest:
        """Returns the request for a range of exactly this version of an object. `answer`: headers
        that the reply must have (`HttpRequest.answer`)."""


Api = TypeVar("Api", bound=KeyedApi)


class KeyedConnector(ABC, Generic[Api]):
    """A container, or a prefix of it. Sends nothing before the first call."""

    _version_header: str  # of a reply, in lower case; holds the etag of a `Fingerprint`
    _checks_order = False  # of the pages of a directory

    def __init__(
        self,
        where: str,
        prefix: str,
        capabilities: Capabilities,
        http: Sender,
        api: Callable[[], Api],
        tell_made: OnConnected,
    ) -> None:
        """`where` is the URL of the container. `prefix` has no leading and no trailing '/'.
        `api` returns a builder of requests, valid as long as the credentials are. Any thread may
        call `tell_made` with new connections."""
        self._where = where
        self._prefix = f"{prefix}/" if prefix else ""
        self.capabilities = capabilities
        self._http = http
        self._api = api
        self._tell_made = tell_made
        self._turns: SmallReadChoice[Api] = SmallReadChoice(API_KEPT_S, time.monotonic)

    @abstractmethod
    def _list(self, prefix: str, token: str, most: int, delimiter: str = "") -> Listing: ...

    @abstractmethod
    def _parsed(self, body: bytes) -> Parsed:
        """Parses a page for `DirectoryPages`."""

    @abstractmethod
    def _stat(self, key: str) -> Fingerprint:
        """Returns the fingerprint of an object, by a request for its metadata."""

    @abstractmethod
    def _check(
        self, head: Head, key: str, path: bytes, offset: int, size: int, version: Fingerprint
    ) -> None:
        """Raises unless the reply matches the request and the version."""

    @abstractmethod
    def _compare(self, found: Fingerprint, version: Fingerprint, path: bytes) -> None:
        """Raises Stale unless an object has the version."""

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
        if not text or not keys.visible_path(path) or not self._can_be_key(key):
            raise NotFound("no such file or directory", path=self._shown(path))
        return key

    def _can_be_key(self, key: str) -> bool:
        """Returns False if no object has this key."""
        return True

    def _directory(self, path: bytes) -> str:
        return self._key(path) + "/" if path else self._prefix

    def _shown(self, path: bytes) -> str:
        return f"{self._where}/{self._prefix}{path.decode('utf-8', 'backslashreplace')}"

    # Metadata.

    def check(self) -> None:
        if not self._has_keys(self._prefix) and self._prefix:
            self._explain_empty()

    def _has_keys(self, prefix: str) -> bool:
        """Returns whether a key has the prefix. Fetches further pages while a page is empty, as a
        store may send them for deleted keys."""
        progress, token = ListingProgress(), ""
        while True:
            listing = self._list(prefix, token, 1)
            if listing.objects or listing.prefixes or not listing.token:
                return bool(listing.objects or listing.prefixes)
            progress.check(token, listing)
            token = listing.token

    def _explain_empty(self) -> None:
        where = f"{self._where}/{self._prefix}"
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
        # The error of a name that the listing lacks, absent or refused, is that of `_stat`.
        return Entry(name, self._stat(key) if file is None or self._may_mark(file) else file)

    def _may_mark(self, file: Fingerprint) -> bool:
        """Returns whether an object may mark a directory: `_stat` decides."""
        return False

    def list_dir(self, path: bytes) -> Iterator[Page]:
        pages = self._pages(self._directory(path))
        return Pages(pages.fetch, pages.close)

    def _pages(self, prefix: str) -> DirectoryPages:
        where = f"{self._where}/{prefix}"
        replies = PageReplies(
            self._http, lambda token: self._api().list(prefix, token, PAGE_KEYS, "/"), where
        )
        return DirectoryPages(prefix, where, replies, self._parsed, checks_order=self._checks_order)

    # Bytes.

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        check_range(offset, size, version)
        key = self._key(path)
        if not size:
            self._compare(self._stat(key), version, path)
            return EmptyBody()
        api = self._api()
        body = self._open(api.get(key, offset, size, version.etag), key, path)
        try:
            self._check(body.head, key, path, offset, size, version)
        except BaseException:
            body.close()
            raise
        self._turns.succeeded(api)
        return body

    def _open(self, request: HttpRequest, key: str, path: bytes) -> FetchBody:
        """Returns the reply to a read."""
        return self._http.send(request, self._shown(path))

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
        range_text = content_range(offset, size, version.size)
        answer = (self._version_header, version.etag), ("content-range", range_text)
        get = api.get(key, offset, size, version.etag, answer)
        return RangeRequest(get, lambda _, error: self._turns.ended(api, error), self._tell_made)
