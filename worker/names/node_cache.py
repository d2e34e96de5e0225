"""A node's bounded cache of a master's namespace: names, attributes, listings and the origins of
files. Pure: times are the caller's clock, in seconds.

The file behind an ino never changes: a new version of an object gets a new ino. So a record may
always be used to locate the bytes of an ino. A name may change, so the record answers for its name
only until `expires_at`, or until an invalidation of the name. A record with `expires_at` 0 never
answers for a name. Records of inos without a known name (replies to GetAttr) are dropped at any
invalidation of an unknown name, which might be theirs.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from cachefs.core.invalidation_log import InvalidationLog
from cachefs.core.messages import Found, Listing
from cachefs.core.model import ROOT_INO, ContentId, Inode, Kind, NamespaceId, Origin
from cachefs.core.policies import NO_RULE, Rule
from cachefs.core.two_generation_map import TwoGenerationMap
from worker.names.pages import DEFAULT_BYTES, ListingPages

DEFAULT_NAMES: Final = 200_000  # about 70 MB; at least half of them are kept
MAX_DIRECTORIES: Final = 20_000
MAX_NAMELESS: Final = 10_000
FOREVER_S: Final = 86400.0

_PARENT: Final = struct.Struct(">Q")
_ABSENT: Final = b""
_decode = msgspec.msgpack.Decoder(Inode).decode
_encode = msgspec.msgpack.Encoder().encode


class RequestMark(NamedTuple):
    """The time of a request, and the position in the invalidations at that time."""

    at_s: float
    position: int

    def expires_at(self, valid_for_s: float) -> float:
        if valid_for_s == 0:
            return 0.0
        return self.at_s + (FOREVER_S if valid_for_s < 0 else valid_for_s)


class Record(msgspec.Struct, frozen=True, gc=False):
    """An encoded inode (b"": no such name) and the end of its validity for its name."""

    inode: bytes
    expires_at: float


class Directory(NamedTuple):
    """The origin of a directory's files, and the policy rule of all of them. `ufs` is a key; `path`
    is relative to that source's root."""

    ufs: str
    path: bytes
    rule: Rule = NO_RULE


class NodeCache:
    """The cache of one namespace. `limit` bounds the names, `page_bytes` the listings."""

    def __init__(
        self, namespace: NamespaceId, limit: int = DEFAULT_NAMES, page_bytes: int = DEFAULT_BYTES
    ) -> None:
        self._namespace = namespace
        self._names: TwoGenerationMap[bytes, Record] = TwoGenerationMap(limit)
        self._keys: TwoGenerationMap[int, bytes] = TwoGenerationMap(limit)  # ino -> key of its name
        self._directories: TwoGenerationMap[int, Directory] = TwoGenerationMap(MAX_DIRECTORIES)
        self._nameless: TwoGenerationMap[int, Record] = TwoGenerationMap(MAX_NAMELESS)
        self._origins: TwoGenerationMap[int, Origin] = TwoGenerationMap(MAX_NAMELESS)
        self._pages = ListingPages(page_bytes)
        self._noted = InvalidationLog()

    def asked(self, now: float) -> RequestMark:
        """Returns the token of a request that is about to be sent; its reply is put with it."""
        return RequestMark(now, self._noted.position)

    # ---- lookups ----

    def lookup(self, parent: int, name: bytes, now: float) -> Found | None:
        """Returns the cached reply while it is valid, else None."""
        record = self._names.get(_PARENT.pack(parent) + name)
        if record is None or record.expires_at <= now:
            return None
        inode = _decode(record.inode) if record.inode else None
        return Found(inode, record.expires_at - now)

    def lookup_stale(self, parent: int, name: bytes) -> Inode | None:
        """Returns the inode of a name, even an expired one. Expired absences are not returned."""
        record = self._names.get(_PARENT.pack(parent) + name)
        if record is None or not record.inode or record.expires_at == 0:
            return None
        return _decode(record.inode)

    def getattr(self, ino: int, now: float) -> Found | None:
        record = self._record(ino)
        if record is None or record.expires_at <= now:
            return None
        return Found(_decode(record.inode), record.expires_at - now)

    def getattr_stale(self, ino: int) -> Inode | None:
        record = self._record(ino)
        return _decode(record.inode) if record is not None and record.expires_at else None

    def origin(self, ino: int) -> Origin | None:
        """Returns the origin of a file, whether or not its name is still valid; None if unknown."""
        key = self._keys.get(ino)
        directory = self._directories.get(_parent_of(key)) if key is not None else None
        record = self._names.get(key) if key is not None and directory is not None else None
        if key is None or directory is None or record is None or not record.inode:
            return self._origins.get(ino)
        inode = _decode(record.inode)
        if inode.ino != ino or inode.kind is not Kind.FILE:
            return self._origins.get(ino)
        return Origin(
            ContentId.of(self._namespace, inode),
            directory.ufs,
            _join(directory.path, _name_of(key)),
            inode.etag,
            inode.size,
            inode.mtime_ns,
            directory.rule,
        )

    def neighbourhood(self, directory: int) -> str | int:
        """Returns a key that directories of one origin most likely share: the key of the source,
        else the parent's ino, else (the parent is the root or unknown) the directory's own."""
        known = self._directories.get(directory)
        if known is not None:
            return known.ufs
        key = self._keys.get(directory)
        above = _parent_of(key) if key is not None else ROOT_INO
        return above if above != ROOT_INO else directory

    def page(self, ino: int, after: bytes, limit: int, now: float) -> Listing | None:
        known = self._pages.get(ino, after, limit)
        if known is None or known[1] <= now:
            return None
        return Listing(known[0].entries, known[0].next, known[1] - now)

    def page_stale(self, ino: int, after: bytes, limit: int) -> Listing | None:
        known = self._pages.get(ino, after, limit)
        return known[0] if known is not None else None

    def sizes(self) -> dict[str, int]:
        return {
            "names": len(self._names),
            "directories": len(self._directories),
            "listing_bytes": self._pages.size_bytes,
        }

    # ---- replies of the master ----

    def put_found(self, parent: int, name: bytes, found: Found, asked: RequestMark) -> bool:
        """Keeps the reply. Returns False, and keeps nothing, if the name was invalidated while the
        request was in flight."""
        if self._noted.is_outdated(asked.position, parent, name):
            return False
        record = _ABSENT if found.inode is None else _encode(found.inode)
        ino = 0 if found.inode is None else found.inode.ino
        self._put(_PARENT.pack(parent) + name, ino, record, asked.expires_at(found.valid_for_s))
        return True

    def put_attributes(self, found: Found, asked: RequestMark) -> bool:
        """Keeps a reply to GetAttr or Resolve. Returns like `put_found`."""
        if found.inode is None:
            return False
        ino = found.inode.ino
        key = self._keys.get(ino)
        if key is not None:
            return self.put_found(_parent_of(key), _name_of(key), found, asked)
        if self._noted.position != asked.position:
            return False
        expires_at = asked.expires_at(found.valid_for_s)
        self._nameless.put(ino, Record(_encode(found.inode), expires_at))
        return True

    def put_listing(
        self, ino: int, after: bytes, limit: int, page: Listing, asked: RequestMark
    ) -> None:
        expires_at = asked.expires_at(page.valid_for_s)
        prefix, outdated = _PARENT.pack(ino), self._noted.is_outdated
        for entry in page.entries:
            if not outdated(asked.position, ino, entry.name):
                record = bytes(entry.inode)
                self._put(prefix + entry.name, _decode(record).ino, record, expires_at)
        if expires_at and self._noted.position == asked.position:
            self._pages.put(ino, after, limit, page, expires_at)

    def put_origin(self, ino: int, origin: Origin, asked: RequestMark) -> None:
        """Keeps the origin of a file. If the file's name is known, keeps the origin of its
        directory instead, which locates the directory's other files, too."""
        key = self._keys.get(ino)
        if self._noted.position != asked.position:
            return
        record = self._record(ino)
        if record is not None and _decode(record.inode).nonce != origin.content.nonce:
            return self.forget(ino)  # the ino was reassigned to another file
        head, _, name = origin.path.rpartition(b"/")
        if key is not None and name == _name_of(key) and not origin.alone:
            self._directories.put(_parent_of(key), Directory(origin.ufs, head, origin.rule))
        else:
            self._origins.put(ino, origin)

    def _put(self, key: bytes, ino: int, record: bytes, expires_at: float) -> None:
        self._names.put(key, Record(record, expires_at))
        if ino:
            self._keys.put(ino, key)
            self._nameless.drop(ino)

    def _record(self, ino: int) -> Record | None:
        key = self._keys.get(ino)
        record = self._names.get(key) if key is not None else None
        if record is not None and record.inode and _decode(record.inode).ino == ino:
            return record
        return self._nameless.get(ino)

    # ---- invalidations ----

    def invalidate(self, parent: int, name: bytes) -> None:
        """Drops a name that was changed or removed, and what depends on it."""
        self._noted.note(parent, name)
        self._pages.drop(parent)
        key = _PARENT.pack(parent) + name
        record = self._names.get(key)
        self._names.drop(key)
        if record is None:
            self._drop_nameless()
        elif record.inode:
            inode = _decode(record.inode)
            self._forget(inode.ino)
            if inode.kind is Kind.DIRECTORY:  # a source may have been mounted or unmounted there
                self._drop_nameless()

    def forget(self, ino: int) -> None:
        """Drops all records of an ino."""
        key = self._keys.get(ino)
        if key is not None:
            self.invalidate(_parent_of(key), _name_of(key))
        self._forget(ino)

    def policies_changed(self) -> None:
        """Drops the origins, which carry the policy rules of their files."""
        self._noted.note_everything()
        self._drop_nameless()

    def invalidate_everything(self) -> None:
        self._noted.note_everything()
        self._names.clear()
        self._keys.clear()
        self._pages.clear()
        self._drop_nameless()

    def _forget(self, ino: int) -> None:
        self._keys.drop(ino)
        self._nameless.drop(ino)
        self._origins.drop(ino)
        self._directories.drop(ino)
        self._pages.drop(ino)

    def _drop_nameless(self) -> None:
        self._nameless.clear()
        self._origins.clear()
        self._directories.clear()


def _parent_of(key: bytes) -> int:
    parent: int = _PARENT.unpack_from(key)[0]
    return parent


def _name_of(key: bytes) -> bytes:
    return key[_PARENT.size :]


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name
