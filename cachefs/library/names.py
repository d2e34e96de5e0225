"""The names of one source as a process knows them: paths to inodes, cached until they change.

Lookups of many paths are pipelined. A directory of which several names are looked up is listed, as
by the FUSE client. The server's events drop names, as there. A path that was resolved is remembered
as a whole until any name changes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, NotADirectory, Stale
from cachefs.core.model import ContentId, Inode, Kind, NamespaceId
from cachefs.fuse.attributes import kernel_time
from cachefs.fuse.dentries import MetadataCache, decode_inodes, encode_inode
from cachefs.fuse.listing_prefetch import PAGES, ListingPrefetch
from cachefs.library.node_session import TRIES, NodeSession, checked, reply_deadline
from cachefs.library.path_walk import PathWalk, Question
from cachefs.library.shared_socket import Exchange, Reply, SocketLost

MOST_PATHS: Final = 65536  # remembered as a whole
IN_FLIGHT: Final = 256
STALE_TRIES: Final = 3  # of a path whose directories are replaced while it is resolved


class KnownPath(msgspec.Struct, frozen=True, gc=False):
    """An inode, the name of its content, and until when (monotonic) the path leads to it."""

    inode: Inode
    content: str
    expires_at: float


class ListedName(NamedTuple):
    """An entry of a directory. A link is listed as itself."""

    name: bytes
    inode: Inode


class Names:
    """The names of one source."""

    def __init__(self, session: NodeSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._cache = MetadataCache()
        self._paths: dict[bytes, KnownPath] = {}
        self._ahead = ListingPrefetch()
        self._valid_s = 0.0  # of the last reply
        self.namespace = NamespaceId(b"")

    # ---- what is known ----

    def known(self, path: bytes, now: float) -> KnownPath | None:
        """Returns what is known of a path, without a request; None if it must be resolved."""
        found = self._paths.get(path)
        return found if found is not None and found.expires_at > now else None

    def forget(self, path: bytes) -> None:
        """Drops a path whose inode turned out to be outdated, with the names on it."""
        root = self._session.attached.root  # this may connect, and that drops all names
        with self._lock:
            self._paths.pop(path, None)
            walk = PathWalk(root, path)
            while (question := walk.question) is not None:
                found = self._cache.lookup(question.parent, question.name, time.monotonic())
                self._cache.invalidate(question.parent, question.name)
                if found is None or found[0] is None:
                    return
                walk.answer(found[0])

    def invalidate(self, entries: Iterable[tuple[int, bytes]]) -> None:
        """Drops names that changed."""
        with self._lock:
            for parent, name in entries:
                self._cache.invalidate(parent, name)
            self._paths = {}

    def invalidate_everything(self, attached: m.Attached | None = None) -> None:
        """Drops all names, and takes the namespace of a new connection."""
        with self._lock:
            self._cache.invalidate_everything()
            self._paths = {}
            self._ahead = ListingPrefetch()
            if attached is not None:
                self.namespace = attached.namespace

    def abandon(self) -> None:
        """Drops all names after a fork: the parent's threads may have held the lock."""
        self._lock = threading.Lock()
        self._cache = MetadataCache()
        self._paths = {}
        self._ahead = ListingPrefetch()

    # ---- resolving ----

    def resolve(self, path: bytes) -> KnownPath:
        """Returns the inode of a path. Raises the typed errors."""
        found = self.known(path, time.monotonic()) or self.resolve_all([path])[0]
        if isinstance(found, CacheFSError):
            raise found
        return found

    def resolve_all(self, paths: Sequence[bytes]) -> list[KnownPath | CacheFSError]:
        """Returns what each path leads to, or its error. Raises the errors that all have: the
        server cannot be reached."""
        found: dict[bytes, KnownPath | CacheFSError] = {}
        left = [*dict.fromkeys(paths)]
        for _ in range(STALE_TRIES):
            found |= dict(zip(left, self._resolve_once(left), strict=True))
            left = [path for path in left if isinstance(found[path], Stale)]
            if not left:
                break
            self._session.attach_again()  # the root itself may have been replaced
            self.invalidate_everything()
        return [found[path] for path in paths]

    def _resolve_once(self, paths: Sequence[bytes]) -> list[KnownPath | CacheFSError]:
        for _ in range(TRIES - 1):
            try:
                return self._walk_all(paths)
            except SocketLost:
                continue
        return self._walk_all(paths)

    def _walk_all(self, paths: Sequence[bytes]) -> list[KnownPath | CacheFSError]:
        self._session.catch_up()
        root = self._session.attached.root
        walks = [_Walk(path, PathWalk(root, path)) for path in paths]
        with self._session.exchange() as exchange:
            _Lookups(self, exchange).run(walks)
        return [self._remember(one) for one in walks]

    def _remember(self, one: _Walk) -> KnownPath | CacheFSError:
        if one.walk.error is not None:
            return one.walk.error
        inode = one.walk.inode
        content = ContentId.name_of(self.namespace, inode)
        known = KnownPath(inode, content, one.expires_at)
        with self._lock:
            if one.position == self._cache.noted.position:  # nothing changed in between
                if len(self._paths) >= MOST_PATHS:
                    self._paths = {}
                self._paths[one.path] = known
        return known

    # ---- called by lookups ----

    def advance(self, one: _Walk) -> Question | None:
        """Continues a walk by what is cached. Returns the name that the server must be sent
        about."""
        now = time.monotonic()
        with self._lock:
            one.position = min(one.position, self._cache.noted.position)
            while (question := one.walk.question) is not None:
                found = self._cache.lookup(question.parent, question.name, now)
                if found is None:
                    return question
                one.expires_at = min(one.expires_at, now + found[1])
                one.walk.answer(found[0])
        return None

    def lookup(self, question: Question) -> m.Lookup:
        return m.Lookup(self.namespace, question.parent, question.name)

    def position(self) -> int:
        """Returns the position in the log of invalidations at which a request is sent."""
        return self._cache.noted.position

    def put_found(self, question: Question, found: m.Found, asked_at: int) -> float:
        """Records a reply, unless the name changed while it was in flight. Returns until when it
        is valid."""
        with self._lock:
            self._valid_s = kernel_time(found.valid_for_s)
            if self._cache.noted.is_outdated(asked_at, question.parent, question.name):
                return 0.0
            expires_at = time.monotonic() + self._valid_s
            if found.inode is not None:
                record = encode_inode(found.inode)
                self._cache.put_inode(found.inode.ino, record, expires_at)
            self._cache.put_name(question.parent, question.name, found.inode, expires_at)
            return expires_at

    def wants_listing(self, directory: int) -> bool:
        """Counts a name of a directory that must be looked up. Returns whether to list the
        directory instead."""
        now = time.monotonic()
        with self._lock:
            return self._ahead.missed(directory, now, now + self._valid_s)

    # ---- listing ----

    def list_all(self, paths: Sequence[bytes]) -> list[list[ListedName] | CacheFSError]:
        """Returns the entries of each directory, in the order of the server, or its error."""
        for _ in range(TRIES - 1):
            try:
                return self._list_once(paths)
            except SocketLost:
                continue
        return self._list_once(paths)

    def _list_once(self, paths: Sequence[bytes]) -> list[list[ListedName] | CacheFSError]:
        resolved = self.resolve_all(paths)
        listings = [_Listing(one) for one in resolved]
        with self._session.exchange() as exchange:
            _Listings(self, exchange).run(listings)
        return [one.error or one.rows for one in listings]

    def list_dir(self, ino: int, after: bytes) -> m.ListDir:
        return m.ListDir(self.namespace, ino, after)

    def put_page(self, ino: int, page: m.Listing, asked_at: int) -> list[ListedName]:
        """Records a page of a listing and returns its entries."""
        records = [bytes(entry.inode) for entry in page.entries]
        inodes = decode_inodes(records)
        rows = [(entry.name, one) for entry, one in zip(page.entries, inodes, strict=True)]
        with self._lock:
            self._valid_s = kernel_time(page.valid_for_s)
            outdated = self._cache.noted.is_outdated
            listing = [
                (name, inode, record)
                for (name, inode), record in zip(rows, records, strict=True)
                if not outdated(asked_at, ino, name)
            ]
            self._cache.put_listing(ino, listing, time.monotonic() + self._valid_s)
        return [*map(ListedName._make, rows)]


class _Walk:
    """A walk, until when its result is valid, and the position of the invalidations it has seen."""

    __slots__ = ("expires_at", "path", "position", "walk")

    def __init__(self, path: bytes, walk: PathWalk) -> None:
        self.path = path
        self.walk = walk
        self.expires_at = float("inf")
        self.position = 1 << 62


class _Lookups:
    """Pipelined lookups for walks of one exchange. Walks share the request for a name, and wait for
    the listing of a directory of which several names are missing."""

    def __init__(self, names: Names, exchange: Exchange) -> None:
        self._names = names
        self._exchange = exchange
        self._waiting: dict[Question, list[_Walk]] = {}
        self._sent: dict[int, tuple[Question, int]] = {}  # request -> and when it was sent
        self._listed: dict[int, list[_Walk]] = {}  # directory -> those that wait for its listing
        self._pages: dict[int, tuple[int, int, int]] = {}  # request -> directory, page, when sent

    def run(self, walks: Sequence[_Walk]) -> None:
        """Ends all walks. Raises SocketLost, DeadlineExceeded."""
        for one in walks:
            while len(self._sent) >= IN_FLIGHT or (self._sent and not self._has_room()):
                self._take(self._exchange.next(reply_deadline()))
            self._go_on(one)
        while self._sent or self._pages:
            self._take(self._exchange.next(reply_deadline()))

    def _has_room(self) -> bool:
        return self._exchange.shared.has_room()

    def _go_on(self, one: _Walk) -> None:
        question = self._names.advance(one)
        if question is None:
            return
        waiting = self._waiting.get(question) or self._listed.get(question.parent)
        if waiting is not None:
            return waiting.append(one)
        if self._names.wants_listing(question.parent):
            self._listed[question.parent] = [one]
            return self._ask_page(question.parent, 1, b"")
        self._waiting[question] = [one]
        asked_at = self._names.position()
        id = self._exchange.send(self._names.lookup(question), reply_deadline())
        self._sent[id] = (question, asked_at)

    def _ask_page(self, directory: int, number: int, after: bytes) -> None:
        asked_at = self._names.position()
        id = self._exchange.send(self._names.list_dir(directory, after), reply_deadline())
        self._pages[id] = directory, number, asked_at

    def _take(self, reply: Reply) -> None:
        if reply.id in self._pages:
            return self._take_page(reply)
        question, asked_at = self._sent.pop(reply.id)
        walks = self._waiting.pop(question)
        try:
            found = checked(reply, m.Found)
        except CacheFSError as err:
            for one in walks:
                one.walk.fail(err)
            return
        expires_at = self._names.put_found(question, found, asked_at)
        for one in walks:
            one.expires_at = min(one.expires_at, expires_at)
            one.walk.answer(found.inode)
            self._go_on(one)

    def _take_page(self, reply: Reply) -> None:
        """Continues the walks that the page helps. Names that no page has are looked up."""
        directory, number, asked_at = self._pages.pop(reply.id)
        walks, after = self._listed.pop(directory), b""
        with contextlib.suppress(CacheFSError):  # the lookups raise it
            page = checked(reply, m.Listing)
            self._names.put_page(directory, page, asked_at)
            after = page.next
        if after and number < PAGES:
            self._listed[directory] = []
            self._ask_page(directory, number + 1, after)
        for one in walks:
            self._go_on(one)


class _Listing:
    """The listing of one directory, as far as it has arrived."""

    def __init__(self, found: KnownPath | CacheFSError) -> None:
        self.rows: list[ListedName] = []
        self.error = found if isinstance(found, CacheFSError) else None
        self.ino = 0 if isinstance(found, CacheFSError) else found.inode.ino
        if not isinstance(found, CacheFSError) and found.inode.kind is not Kind.DIRECTORY:
            self.error = NotADirectory("not a directory")


class _Listings:
    """Pipelined listings of one exchange: a page of each directory at a time."""

    def __init__(self, names: Names, exchange: Exchange) -> None:
        self._names = names
        self._exchange = exchange
        self._sent: dict[int, tuple[_Listing, int]] = {}

    def run(self, listings: Sequence[_Listing]) -> None:
        for one in listings:
            if one.error is None:
                self._ask(one, b"")
        while self._sent:
            self._take(self._exchange.next(reply_deadline()))

    def _ask(self, one: _Listing, after: bytes) -> None:
        asked_at = self._names.position()
        id = self._exchange.send(self._names.list_dir(one.ino, after), reply_deadline())
        self._sent[id] = (one, asked_at)

    def _take(self, reply: Reply) -> None:
        one, asked_at = self._sent.pop(reply.id)
        try:
            page = checked(reply, m.Listing)
        except CacheFSError as err:
            one.error = err
            return
        one.rows += self._names.put_page(one.ino, page, asked_at)
        if page.next:
            self._ask(one, page.next)
