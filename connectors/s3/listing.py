"""The pages of ListObjectsV2: parsed strictly and fast (5 us a key), made into entries. Pure.

An object whose size no file has is hidden and counted, as a key is that no file system can show. A
time out of bounds is clamped, one that cannot be read is that of the epoch.
"""

from __future__ import annotations

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
IDLE_PAGES: Final = 10_000  # in a row, see `Progress`: 10 million deleted objects


class Listed(NamedTuple):
    """One object of a listing."""

    key: str
    fingerprint: Fingerprint | None  # None: of a size that no file has


class Listing(NamedTuple):
    """One reply. `token`: how to ask for the next, "" at the end."""

    objects: list[Listed]
    prefixes: list[str]
    token: str

    @property
    def greatest(self) -> str:
        """The last name of the page in the order of keys; "" where it has none."""
        return max((*(key for key, _ in self.objects), *self.prefixes), default="")


class Progress:
    """Whether the pages of one listing lead anywhere. A store may answer pages without a name while
    it passes over deleted ones; a listing whose pages bring no greater name for `IDLE_PAGES` pages
    has no end. How long that takes says nothing."""

    def __init__(self) -> None:
        self._greatest = ""
        self._idle_pages = 0

    def check(self, asked: str, listing: Listing) -> None:
        """Takes the reply to the token `asked`. Raises OriginError for a listing without an end."""
        if not listing.token:
            return
        if listing.token == asked:
            raise OriginError("a page of the listing names itself as the next one")
        if (greatest := listing.greatest) > self._greatest:
            self._greatest, self._idle_pages = greatest, 0
            return
        self._idle_pages += 1
        if self._idle_pages > IDLE_PAGES:
            raise OriginError(
                f"the listing has no end: {self._idle_pages} pages brought no new name, and each"
                " names a next page"
            )


def parse_listing(body: bytes) -> Listing:
    """Raises BadBody for a torn reply, OriginError for one that is no listing."""
    if any(mark in body for mark in _NOT_PLAIN):
        raise OriginError("the listing is no plain XML")
    try:
        root = ElementTree.fromstring(body)
    except XML_ERRORS as error:
        raise BadBody(f"a torn listing ({error})") from error
    namespace, _, name = root.tag.rpartition("}")
    if name != "ListBucketResult":
        raise OriginError(f"the endpoint answers <{name}> to a listing: no S3 server?")
    return _parse(root, f"{namespace}}}" if namespace else "")


def _parse(root: ElementTree.Element, ns: str) -> Listing:
    encoded = root.findtext(f"{ns}EncodingType") == "url"
    token = root.findtext(f"{ns}NextContinuationToken") or ""
    truncated = root.findtext(f"{ns}IsTruncated") == "true"
    if truncated and not token:
        raise BadBody("a listing says that more follows, and not how to ask for it")
    objects = _objects(root, ns, encoded)
    texts = (item.text for group in root.iterfind(f"{ns}CommonPrefixes") for item in group)
    prefixes = [_key(text or "", encoded) for text in texts]
    return Listing(objects, prefixes, token if truncated else "")


def _objects(root: ElementTree.Element, ns: str, encoded: bool) -> list[Listed]:
    key_tag, size_tag, etag_tag = f"{ns}Key", f"{ns}Size", f"{ns}ETag"
    time_tag = f"{ns}LastModified"
    found = []
    for item in root.iterfind(f"{ns}Contents"):
        of = item.findtext
        key = of(key_tag)
        if not key:
            raise BadBody("a listing with an object without a key")
        size, etag = parse_size(of(size_tag, "")), clean_etag(of(etag_tag, ""))
        mtime_ns = _mtime_ns(of(time_tag, ""))
        fingerprint = None if size is None else Fingerprint(Kind.FILE, size, mtime_ns, etag)
        found.append(Listed(_key(key, encoded), fingerprint))
    return found


def _key(text: str, encoded: bool) -> str:
    return unquote_plus(text) if encoded and ("%" in text or "+" in text) else text


def _mtime_ns(text: str) -> int:
    """Whole seconds, as HEAD has no more."""
    try:
        return whole_seconds_ns(datetime.fromisoformat(text))
    except ValueError:
        return UNKNOWN_NS


def directory_page(listing: Listing, prefix: str, after: bytes = b"") -> Page:
    """The children of `prefix` in a listing with a delimiter, in order, those beyond `after`."""
    start = _below(listing, prefix)
    files: dict[bytes, Fingerprint] = {}
    hidden = 0
    for key, fingerprint in listing.objects:
        name = key[start:].encode()
        if keys.visible(name) and fingerprint is not None:
            files[name] = fingerprint
        else:
            hidden += bool(name)  # the marker of the directory itself is nothing hidden
    names = {found[start:].encode()[:-1] for found in listing.prefixes}
    directories = {name for name in names if keys.visible(name)}
    hidden += len(names) - len(directories) + keys.directories_win(files, directories)
    found = [(name, Entry(name, fingerprint)) for name, fingerprint in files.items()]
    found += [(order_key(name, True), Entry(name, DIRECTORY)) for name in directories]
    found.sort(key=lambda pair: pair[0])
    return Page([entry for key_, entry in found if key_ > after], hidden)


def _below(listing: Listing, prefix: str) -> int:
    """Where names start; a server that lists what was not asked for is not believed."""
    keys_listed = (key for key, _ in listing.objects)
    if not all(key.startswith(prefix) for key in (*keys_listed, *listing.prefixes)):
        raise OriginError(f"the listing has keys that are not below {prefix!r}")
    return len(prefix)


def tree_page(listing: Listing, prefix: str) -> Page:
    """The files, and the directories that markers make, in a listing without a delimiter."""
    start = _below(listing, prefix)
    files: dict[bytes, Fingerprint] = {}
    marked: set[bytes] = set()
    hidden = 0
    for key, fingerprint in listing.objects:
        path, is_directory, is_hidden = keys.place(key[start:].encode())
        hidden += is_hidden
        if not is_directory and fingerprint is not None:
            files[path] = fingerprint
            continue
        if not is_directory:  # hidden by its size: its directories exist
            hidden += 1
            path = path.rpartition(b"/")[0]
        if path:
            marked.add(path)
    hidden += keys.directories_win(files, marked | _implied(files))
    found = [(name, Entry(name, fingerprint)) for name, fingerprint in files.items()]
    found += [(order_key(name, True), Entry(name, DIRECTORY)) for name in marked]
    found.sort(key=lambda pair: pair[0])
    return Page([entry for _, entry in found], hidden)


def _implied(files: dict[bytes, Fingerprint]) -> set[bytes]:
    """The directories above the files of a page; neighbours mostly share theirs."""
    implied: set[bytes] = set()
    for path in files:
        directory = path.rpartition(b"/")[0]
        if directory and directory not in implied:
            implied.update((directory, *keys.parents(directory)))
    return implied
