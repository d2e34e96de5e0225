"""The pages of ListObjectsV2: checks, conversion to entries. Pure.

An object whose size no file can have is hidden and counted, like a key that no file system can
show. A time out of bounds is clamped; a time that cannot be parsed becomes the Unix epoch.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import unquote_plus

from cachefs.core.errors import BadBody, OriginError
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.base import Entry, Page, clean_etag, order_key
from connectors.bounds import UNKNOWN_NS, parse_size, whole_seconds_ns
from connectors.s3.listing_xml import PageTexts, page_texts

DIRECTORY: Final = Fingerprint(Kind.DIRECTORY)
IDLE_PAGES: Final = 10_000  # in a row (10 million deleted objects), see `ListingProgress`


class Listed(NamedTuple):
    """An object of a listing."""

    key: str
    fingerprint: Fingerprint | None  # None: a size that no file can have


class Listing(NamedTuple):
    """A reply. `token`: the continuation token of the next page, "" at the end."""

    objects: list[Listed]
    prefixes: list[str]
    token: str

    @property
    def greatest(self) -> str:
        """The last name of the page in key order; "" if it has none."""
        return max((*(key for key, _ in self.objects), *self.prefixes), default="")


class ListingProgress:
    """The check that one listing ends. A store may send pages without a name while it skips deleted
    objects. `IDLE_PAGES` pages in a row without a greater name are an error, however slow."""

    def __init__(self) -> None:
        self._greatest = ""
        self._idle_pages = 0

    @property
    def is_idle(self) -> bool:
        """Whether the last page had no greater name."""
        return self._idle_pages > 0

    def check(self, token: str, listing: Listing) -> None:
        """Checks the reply to `token` ("": none). Raises OriginError for an endless listing."""
        if not listing.token:
            return
        if listing.token == token:
            raise OriginError("a page of the listing names itself as the next one")
        if (greatest := listing.greatest) > self._greatest:
            self._greatest, self._idle_pages = greatest, 0
            return
        self._idle_pages += 1
        if self._idle_pages > IDLE_PAGES:
            raise OriginError(
                f"the listing has no end: {self._idle_pages} pages in a row had no new name, and"
                " each names a next page"
            )


def parse_listing(body: bytes) -> Listing:
    """Parses a reply. Raises BadBody for an incomplete one, OriginError if it is no listing."""
    return listing_of(page_texts(body))


def next_token(page: PageTexts) -> str:
    """Returns the token of the next page, "" at the end. Raises BadBody if it is missing."""
    if page.truncated != "true":
        return ""
    if not page.token:
        raise BadBody("the listing is truncated but has no continuation token")
    return page.token


def listing_of(page: PageTexts) -> Listing:
    """Returns the listing of a parsed page. Raises BadBody for an incomplete one."""
    token, prefixes = next_token(page), _decoded(page.prefixes, page.encoding)
    return Listing(_objects(page), prefixes, token)


def _objects(page: PageTexts) -> list[Listed]:
    if not all(page.keys):
        raise BadBody("the listing has an object without a key")
    keys_listed = _decoded(page.keys, page.encoding)
    times = {text: _mtime_ns(text) for text in {*page.times}}  # many are of one second
    found = []
    for key, time, etag, text in zip(keys_listed, page.times, page.etags, page.sizes, strict=True):
        size, fingerprint = parse_size(text), None
        if size is not None:
            fingerprint = Fingerprint(Kind.FILE, size, times[time], clean_etag(etag))
        found.append(Listed(key, fingerprint))
    return found


def _decoded(texts: list[str], encoding: str) -> list[str]:
    if encoding != "url":
        return texts
    return [unquote_plus(text) if "%" in text or "+" in text else text for text in texts]


def _mtime_ns(text: str) -> int:
    """Returns the time in whole seconds, the precision of a HEAD."""
    try:
        return whole_seconds_ns(datetime.fromisoformat(text))
    except ValueError:
        return UNKNOWN_NS


def first_names(
    listing: Listing, key: str, *, is_ordered: bool = True
) -> tuple[Fingerprint | None, bool | None]:
    """Returns the object `key`, if it is in the first page of the names that begin with it, and
    whether there are keys below `key/`; None: they may be behind the end of the page. A page that
    is not the last one of a store without an order (`is_ordered`) shows only what it has."""
    file = next((found for name, found in listing.objects if name == key), None)
    below = key + "/"
    if any(prefix == below for prefix in listing.prefixes):
        return file, True
    is_past = is_ordered and listing.greatest.encode() > below.encode()
    return file, False if is_past or not listing.token else None


def directory_page(listing: Listing, prefix: str) -> Page:
    """Returns the children of `prefix`, in order, of a listing with delimiter."""
    start = _below(listing, prefix)
    files: dict[bytes, Fingerprint] = {}
    hidden = 0
    for key, fingerprint in listing.objects:
        name = key[start:].encode()
        if keys.visible(name) and fingerprint is not None:
            files[name] = fingerprint
        else:
            hidden += bool(name)  # the marker of the directory itself does not count
    below = (found for found in listing.prefixes if found != prefix)  # nor do others like it
    names = {found[start:].encode()[:-1] for found in below}
    directories = {name for name in names if keys.visible(name)}
    hidden += len(names) - len(directories) + keys.directories_win(files, directories)
    found = [(name, Entry(name, fingerprint)) for name, fingerprint in files.items()]
    found += [(order_key(name, True), Entry(name, DIRECTORY)) for name in directories]
    found.sort(key=lambda pair: pair[0])
    return Page([entry for _, entry in found], hidden)


def _below(listing: Listing, prefix: str) -> int:
    """Returns the offset of names in keys. Raises OriginError for a key outside of `prefix`."""
    keys_listed = (key for key, _ in listing.objects)
    if not all(key.startswith(prefix) for key in (*keys_listed, *listing.prefixes)):
        raise OriginError(f"the listing has keys that are not below {prefix!r}")
    return len(prefix)
