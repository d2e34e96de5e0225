"""The interface to a UFS. Calls block, may run in many threads at once, and release the GIL while
they wait. Adapters classify errors and never retry: `connectors.compose` adds retry, limit and
meter.

Paths are `bytes` below the root of the UFS, '/'-separated, without a leading or trailing '/'; the
root is b"". An adapter never returns a name that a file system cannot show: `Page.hidden` counts
it by the rules of `connectors.keys` (see docs/SEMANTICS.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from cachefs.core.model import Fingerprint
from connectors.capabilities import Capabilities

if TYPE_CHECKING:
    from connectors.fetch.request import RangeRequest

MAX_ETAG_CHARS: Final = 1024


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name of a listing, or the result of `stat`. `name` is the last segment (b"": the root).
    mode, uid, gid: -1 = unknown. Size and time lie within `connectors.bounds`. `names_changed_ns`:
    when the names of a directory changed last, if the store has it (`directory_times`)."""

    name: bytes
    fingerprint: Fingerprint
    mode: int = -1
    uid: int = -1
    gid: int = -1
    target: bytes = b""
    names_changed_ns: int = 0


class Page(msgspec.Struct, frozen=True):
    """A part of a listing. `hidden` counts its keys that cannot be shown. `last` is True for the
    last page; it is False while the adapter does not know."""

    entries: list[Entry]
    hidden: int = 0
    last: bool = False


class Body(Protocol):
    """A ranged read in progress. Chunks are buffers of any size, in order; `close` may be called
    early and is idempotent. Iteration raises BadBody when the body ends early, is too long, or does
    not match the request; the chunks yielded before that are correct."""

    def __iter__(self) -> Iterator[memoryview]: ...
    def close(self) -> None: ...


class Connector(Protocol):
    """A UFS. Every method may raise the typed errors of `cachefs.core.errors`: NotFound,
    AccessDenied, CredentialsMissing, Stale, Unreachable, Throttled, Unavailable, BadBody, Archived,
    OriginError, DeadlineExceeded; nothing else. A listing is lazy: a temporary error is raised by
    `next`, and the following `next` fetches the same page again (`connectors.pages`)."""

    @property
    def capabilities(self) -> Capabilities: ...

    def check(self) -> None:
        """Checks that the root exists and can be listed. Raises NotFound (no bucket, directory or
        key under the prefix), AccessDenied, CredentialsMissing, Unreachable, with a remedy."""

    def stat(self, path: bytes) -> Entry:
        """Returns the entry of `path`. A directory hides an object of its name. Raises NotFound."""

    def list_dir(self, path: bytes) -> Iterator[Page]:
        """Yields the children of a directory, in pages of about 1,000. A name is yielded once. A
        directory hides an object of the same name *within a page only*: if an earlier page had the
        object, the caller drops it. Raises NotFound for a missing directory if the store has
        directories (`Capabilities`); else the listing is empty."""

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        """Opens `size` bytes at `offset` of exactly that version. The request is conditional if the
        store supports that; the reply's etag, total length and Content-Range are compared. Raises
        Stale for another version, NotFound for a deleted object, ValueError for a range beyond
        `version.size`. A chunk is valid until the next one."""

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        """Returns the whole file, of exactly that version, in one buffer: cheaper than `read` for
        small files. Raises the errors of `read` and of its body; partial data is discarded."""

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        """Returns the request for a range, for `connectors.fetch.batch_reader` and
        `connectors.download`; None: use `read`. Never blocks or raises. The caller must call
        `ended` of the request once."""

    def close(self) -> None:
        """Releases connections; idempotent."""


def check_range(offset: int, size: int, version: Fingerprint) -> None:
    """Raises ValueError unless the file has these bytes."""
    if offset < 0 or size < 0 or offset + size > version.size:
        raise ValueError(f"{size} bytes at {offset} of a file of {version.size}")


def clean_etag(text: str) -> str:
    """Returns an etag without its quotes and its weak mark, or "" if a header cannot carry it."""
    if len(text) > MAX_ETAG_CHARS or not (text.isascii() and text.isprintable()):
        return ""
    return text.removeprefix("W/").strip('"')


def order_key(name: bytes, is_directory: bool) -> bytes:
    """Returns the sort key of a child. It is S3's order: a directory compares as `name/`."""
    return name + b"/" if is_directory else name
