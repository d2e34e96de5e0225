"""The pages of ListObjectsV2: strict and fast parsing (3 us a key), conversion to entries. Pure.

Objects written as nearly all stores write them are cut out by a regular expression, which takes a
seventh of an XML parser's time. The parser gets the rest of the page, so it still finds a page that
is malformed or incomplete, and every object that is written in another way.

An object whose size no file can have is hidden and counted, like a key that no file system can
show. A time out of bounds is clamped; a time that cannot be parsed becomes the Unix epoch.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from cachefs.core.errors import BadBody, OriginError
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.base import Entry, Page, clean_etag, order_key
from connectors.bounds import UNKNOWN_NS, parse_size, whole_seconds_ns
from connectors.s3.errors import XML_ERRORS

DIRECTORY: Final = Fingerprint(Kind.DIRECTORY)
_NOT_PLAIN: Final = (b"<!DOCTYPE", b"<!ENTITY", b"\0")  # the last: UTF-16, which hides the others
IDLE_PAGES: Final = 10_000  # in a row (10 million deleted objects), see `ListingProgress`
_PLAIN_ROOT: Final = "<ListBucketResult"  # without a prefix
_TEXT: Final = "[ !-%'-;=-~]*"  # printable ASCII without markup


def _tag(name: str, text: str = _TEXT) -> str:
    return f"<{name}>{text}</{name}>"


def _any(name: str) -> str:
    return f"(?:{_tag(name)})*"


_KEY: Final = _tag("Key", f"(?P<key>{_TEXT})")
_TIME: Final = _tag("LastModified", f"(?P<time>{_TEXT})")
_ETAG: Final = _tag("ETag", f"(?:&quot;)?(?P<etag>{_TEXT})(?:&quot;)?")
_SIZE: Final = _tag("Size", f"(?P<size>{_TEXT})")
_SUMS: Final = _any("ChecksumAlgorithm") + _any("ChecksumType")
_CLASS: Final = _any("StorageClass")
# In the order of the API's description, and sorted by name.
_PLAIN: Final = tuple(
    re.compile(_tag("Contents", "".join(tags)))
    for tags in (
        (_KEY, _TIME, _ETAG, _SUMS, _SIZE, _CLASS),
        (_SUMS, _ETAG, _KEY, _TIME, _SIZE, _CLASS),
    )
)


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
    if any(mark in body for mark in _NOT_PLAIN):
        raise OriginError("the listing has a DOCTYPE, an entity or a NUL byte")
    plain, rest = _cut_out(body)
    try:
        root = ElementTree.fromstring(rest)
    except XML_ERRORS as error:
        raise BadBody(f"the listing is malformed or incomplete ({error})") from error
    namespace, _, name = root.tag.rpartition("}")
    if name != "ListBucketResult":
        raise OriginError(f"the endpoint sent <{name}> instead of a listing: no S3 server?")
    return _parse(root, f"{namespace}}}" if namespace else "", plain)


class _Texts(NamedTuple):
    """The texts of objects, a list for each element."""

    keys: list[str]
    times: list[str]
    etags: list[str]
    sizes: list[str]


def _cut_out(body: bytes) -> tuple[_Texts, bytes]:
    """Returns the objects that are written plainly, and the page without them."""
    text = body.decode("latin-1")
    if "<!" not in text and _PLAIN_ROOT in text:
        for pattern in _PLAIN:
            parts = pattern.split(text)
            if len(parts) > 1:
                step = 1 + pattern.groups
                groups = pattern.groupindex
                columns = (parts[groups[name] :: step] for name in ("key", "time", "etag", "size"))
                return _Texts(*columns), "".join(parts[::step]).encode("latin-1")
    return _Texts([], [], [], []), body


def _parse(root: ElementTree.Element, ns: str, plain: _Texts) -> Listing:
    encoded = root.findtext(f"{ns}EncodingType") == "url"
    token = root.findtext(f"{ns}NextContinuationToken") or ""
    truncated = root.findtext(f"{ns}IsTruncated") == "true"
    if truncated and not token:
        raise BadBody("the listing is truncated but has no continuation token")
    objects = _listed(plain, encoded) + _listed(_found(root, ns), encoded)
    texts = (item.text for group in root.iterfind(f"{ns}CommonPrefixes") for item in group)
    prefixes = [_key(text or "", encoded) for text in texts]
    return Listing(objects, prefixes, token if truncated else "")


def _found(root: ElementTree.Element, ns: str) -> _Texts:
    """Returns the objects that the parser found."""
    names = ("Key", "LastModified", "ETag", "Size")
    found = _Texts([], [], [], [])
    columns = [(column, f"{ns}{name}") for column, name in zip(found, names, strict=True)]
    for item in root.iterfind(f"{ns}Contents"):
        for column, tag in columns:
            column.append(item.findtext(tag, ""))
    return found


def _listed(texts: _Texts, encoded: bool) -> list[Listed]:
    if not all(texts.keys):
        raise BadBody("the listing has an object without a key")
    times = {text: _mtime_ns(text) for text in set(texts.times)}  # many are of one second
    found = []
    for key, time, etag, size_text in zip(*texts, strict=True):
        size = parse_size(size_text)
        if size is None:
            found.append(Listed(_key(key, encoded), None))
        else:
            fingerprint = Fingerprint(Kind.FILE, size, times[time], clean_etag(etag))
            found.append(Listed(_key(key, encoded), fingerprint))
    return found


def _key(text: str, encoded: bool) -> str:
    return unquote_plus(text) if encoded and ("%" in text or "+" in text) else text


def _mtime_ns(text: str) -> int:
    """Returns the time in whole seconds, the precision of a HEAD."""
    try:
        return whole_seconds_ns(datetime.fromisoformat(text))
    except ValueError:
        return UNKNOWN_NS


def first_names(listing: Listing, key: str) -> tuple[Fingerprint | None, bool | None]:
    """Returns the object `key`, if it is in the first page of the names that begin with it, and
    whether there are keys below `key/`; None: they may be behind the end of the page."""
    file = next((found for name, found in listing.objects if name == key), None)
    below = key + "/"
    if any(prefix == below for prefix in listing.prefixes):
        return file, True
    is_past = listing.greatest.encode() > below.encode()
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
    names = {found[start:].encode()[:-1] for found in listing.prefixes}
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
