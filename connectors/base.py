"""The one interface to a UFS. Blocking; every call may be made from many threads at once and
releases the GIL while it waits. Adapters classify errors and never retry: `connectors.compose`
puts retry, limit and meter around them in one place.

Paths are `bytes` below the root of the UFS, '/'-separated, without a leading or trailing '/'; the
root is b"". A name that a file system cannot show never leaves an adapter: it is counted in
`Listing.hidden` by the rules of `connectors.keys` (see docs/SEMANTICS.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from cachefs.core.model import Fingerprint

if TYPE_CHECKING:
    from connectors.fetch.request import Ask

MAX_ETAG_CHARS: Final = 1024


class Capabilities(msgspec.Struct, frozen=True):
    """What the store can and cannot tell."""

    ordered_listings: bool  # pages come in the order of `order_key` (else: any order)
    etags: bool  # files have a `Fingerprint.etag`, which changes with the bytes
    directories: bool  # directories exist by themselves (file://), not by keys below them (s3://)
    posix: bool  # mode, uid, gid and symlinks are the origin's own
    mtime_precision_ns: int


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One name in a listing, or the answer of `stat`. `name` is the last segment (b"": the root);
    in `list_tree` it is the path below the listed directory. mode, uid, gid: -1 = not known. Size
    and time lie within `connectors.bounds`."""

    name: bytes
    fingerprint: Fingerprint
    mode: int = -1
    uid: int = -1
    gid: int = -1
    target: bytes = b""


class Page(msgspec.Struct, frozen=True):
    """A part of a listing. `hidden` counts the keys in it that cannot be shown. `last`: no other
    comes after it; False where that is not known yet."""

    entries: list[Entry]
    hidden: int = 0
    last: bool = False


class Body(Protocol):
    """A ranged read under way. Chunks are buffers of any size, in order; `close` may be called
    early and is idempotent. Iteration raises BadBody when the body ends early, runs over, or
    differs from what was asked for, after having yielded only bytes that are right."""

    def __iter__(self) -> Iterator[memoryview]: ...
    def close(self) -> None: ...


class Connector(Protocol):
    """A UFS. Every method may raise the typed errors of `cachefs.core.errors`: NotFound,
    AccessDenied, CredentialsMissing, Stale, Unreachable, Throttled, Unavailable, BadBody, Archived,
    OriginError, DeadlineExceeded; nothing else. A listing is lazy: what may fail for now fails with
    a page, and the iterator may be asked again and repeats that page (`connectors.pages`)."""

    @property
    def capabilities(self) -> Capabilities: ...

    def check(self) -> None:
        """Is the root there and may we list it? Raises NotFound (no bucket, no such directory, or
        nothing under the prefix), AccessDenied, CredentialsMissing, Unreachable, with a remedy."""

    def stat(self, path: bytes) -> Entry:
        """What `path` is now. A directory wins over an object of the same name. Raises NotFound."""

    def list_dir(self, path: bytes, after: bytes = b"") -> Iterator[Page]:
        """The children of a directory, in pages of about 1,000; with ordered listings only those
        whose `order_key` is greater than `after` (an order key). A name is yielded once; a
        directory wins over an object of the same name *within a page only* (the object may have
        come in an earlier page: the caller, who merges pages into a store, drops it). Raises
        NotFound where the store has directories of its own; an empty listing elsewhere."""

    def list_tree(self, path: bytes) -> Iterator[Page]:
        """Every file below a directory (directories are implied by the names, except empty ones),
        in pages, in S3 key order where listings are ordered."""

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        """`size` bytes at `offset` (within the file) of exactly that version: the request is
        conditional where the store can, and the reply's etag, total length and Content-Range are
        compared. Raises Stale when the object is another version now, NotFound when it is gone;
        ValueError for a range beyond `version.size`. A chunk is valid until the next one."""

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        """The whole file, of exactly that version, in one buffer: for small files, which cost less
        so. Raises what `read` and the iteration of its body raise; of a body that breaks nothing is
        kept."""

    def ask(self, path: bytes, version: Fingerprint) -> Ask | None:
        """Returns the request for all of a small file, for `connectors.fetch.many`, which answers
        for many files in one thread. None: `read_all` is the way to it. Waits for nothing, raises
        nothing; who gets a request calls its `ended`."""

    def close(self) -> None:
        """Releases connections; idempotent."""


def clean_etag(text: str) -> str:
    """Without quotes and without the mark of a weak one. "": none, or one that no request can carry
    in a header."""
    if len(text) > MAX_ETAG_CHARS or not (text.isascii() and text.isprintable()):
        return ""
    return text.removeprefix("W/").strip('"')


def order_key(name: bytes, is_directory: bool) -> bytes:
    """The order of children everywhere: as S3 orders keys, a directory compares as `name/`."""
    return name + b"/" if is_directory else name
