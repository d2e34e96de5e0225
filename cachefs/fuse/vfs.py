"""The file system without FUSE: names, attributes, directories and files of one mounted source.

A transport calls `X_nowait` and, on MUST_WAIT, `X`. Arguments are nodeids (`cachefs.core.model`)
and file handles. Methods raise the typed errors, which the transport translates to errno, or
OSError when this process has no descriptor left. Cancelling a waiting call leaves shared work (a
fill, a listing) running at the server and no state here. All methods belong to one trio loop.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable
from typing import Final, Never

import trio

from cachefs.client.call_waits import Waits
from cachefs.core import messages as m
from cachefs.core.addresses import namespace_base
from cachefs.core.errors import (
    CacheFSError,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    ReadOnly,
    Stale,
)
from cachefs.core.model import MAX_INO, MAX_NAME_BYTES, ROOT_INO, Inode, Kind, NamespaceId
from cachefs.fuse.attributes import Defaults, kernel_time
from cachefs.fuse.dentries import (
    DEFAULT_INODES,
    Listed,
    MetadataCache,
    decode_inodes,
    encode_inode,
)
from cachefs.fuse.directories import (
    FIRST,
    DirectoryHandle,
    DirectoryTable,
    Entries,
    FetchPage,
    Mark,
    Page,
    dots_after,
)
from cachefs.fuse.files import Files
from cachefs.fuse.handles import FileHandle
from cachefs.fuse.listing_prefetch import PAGES, ListingPrefetch
from cachefs.fuse.orders import Orders
from cachefs.fuse.root import Root
from cachefs.fuse.server_calls import MUST_WAIT, Caller, MustWait, Reply, ServerCalls

log = logging.getLogger(__name__)

REPORT_USES_S: Final = 1.0
OPEN_STALE_S: Final = 3600.0  # attributes of an open file that lost its name: they never change
MAX_PAGES_PER_SEEK: Final = 1 << 16
MAX_NAMES_AHEAD: Final = 64  # directories queued for read-ahead; further ones are skipped
_CHANGES: Final = os.O_ACCMODE | os.O_TRUNC | os.O_CREAT  # O_APPEND alone changes nothing
_FILE: Final = Kind.FILE

Invalidated = Callable[[list[tuple[int, bytes]], bool], None]


class Vfs:
    """The file system of one mount; `files` has its open files, and reads them. `clock` returns
    seconds; `waits` lets reads wait for a thread; `attach` is sent again when the mounted directory
    was replaced. The Vfs calls `on_invalidated(entries, everything)` for entries that the kernel
    must drop; with `everything`, `entries` are all names in the metadata cache."""

    def __init__(
        self,
        caller: Caller,
        attached: m.Attached,
        defaults: Defaults,
        *,
        clock: Callable[[], float] = trio.current_time,
        max_inodes: int = DEFAULT_INODES,
        waits: Waits | None = None,
        attach: m.Attach | None = None,
    ) -> None:
        self.namespace: NamespaceId = attached.namespace
        self.defaults = defaults
        self.on_invalidated: Invalidated = lambda _entries, _everything: None
        self._clock = clock
        self._node = ServerCalls(caller)
        self._cache = MetadataCache(max_inodes)
        self.files = Files(self._node, attached.namespace, waits or Waits())
        self.give_back = self.files.lent.run  # closes idle segments, until cancelled
        self.orders = Orders(self._node, lambda: self.namespace)
        self._directories = DirectoryTable()
        self._ahead = ListingPrefetch()
        self.keeps_pages = True  # by the kernel, between opens: no tier has lost bytes
        self.on_doubt: Callable[[int], None] = lambda _tier: None  # for the kernel's open nodes
        self.is_open_elsewhere: Callable[[int], bool] = lambda _ino: False  # passthrough opens too
        # the inode of an open nodeid as it was opened, if it is known
        self.inode_of_open: Callable[[int], Inode | None] = self.files.table.inode
        self._warned_of_rollback = False
        self.on_given_again: Callable[[int], None] = lambda _ino: None  # see `_check_reused`
        self._to_read, self._reading = trio.open_memory_channel[int](MAX_NAMES_AHEAD)
        self._attach = attach
        self._root_in_doubt = trio.Event()
        self._root = self._root_of(attached)
        self._put(self._root.shown(attached.root), clock())

    # ---- names and attributes ----

    def lookup_nowait(self, parent: int, name: bytes) -> m.Found | MustWait:
        """Returns the inode of a name (None: no such name) and for how long (s) it is valid."""
        if len(name) > MAX_NAME_BYTES:
            raise NameTooLong("a name has at most 255 bytes")
        known = self._cache.lookup(parent & MAX_INO, name, self._clock())
        return MUST_WAIT if known is None else m.Found(*known)

    async def lookup(self, parent: int, name: bytes) -> m.Found:
        """Returns the same as `lookup_nowait`, from the server."""
        directory = parent & MAX_INO
        asked_at = self._cache.noted.position
        found = await self._ask_about(
            directory, lambda ino: m.Lookup(self.namespace, ino, name), m.Found
        )
        valid_for_s = kernel_time(found.valid_for_s)
        if self._cache.noted.is_outdated(asked_at, directory, name):
            valid_for_s = 0.0  # it changed while the reply was in flight
        now = self._clock()
        self._put_found(directory, name, found.inode, now + valid_for_s)
        if self._ahead.missed(directory, now, now + valid_for_s):
            with contextlib.suppress(trio.WouldBlock):
                self._to_read.send_nowait(directory)
        return m.Found(found.inode, valid_for_s)

    def getattr_nowait(self, nodeid: int) -> m.Found | MustWait:
        """Returns the inode (never None) and for how long (s) it is current."""
        known = self._cache.current(nodeid & MAX_INO, self._clock())
        return MUST_WAIT if known is None else m.Found(*known)

    async def getattr(self, nodeid: int) -> m.Found:
        """Returns the same as `getattr_nowait`, from the server. Raises Stale when the ino was
        replaced or removed and is not open: an open file keeps its attributes."""
        ino = nodeid & MAX_INO
        try:
            found = await self._ask_about(ino, lambda ino: m.GetAttr(self.namespace, ino), m.Found)
            if found.inode is None:
                raise Stale("the file is gone")
        except Stale:
            inode = self.inode_of_open(nodeid)
            if inode is None and self._is_open(ino):  # adopted from a table without attributes
                inode = self._cache.inode(ino)
            if inode is None:
                self._cache.forget_inode(ino)
                raise
            return m.Found(inode, OPEN_STALE_S)
        valid_for_s = kernel_time(found.valid_for_s)
        inode = self._root.shown(found.inode)
        self._put(inode, self._clock() + valid_for_s)
        return m.Found(inode, valid_for_s)

    def getattr_former(self, nodeid: int) -> m.Found:
        """Returns the attributes of an open file whose ino was reassigned, or raises Stale."""
        inode = self.inode_of_open(nodeid)
        if inode is None:
            raise Stale("the file is gone")
        return m.Found(inode, OPEN_STALE_S)

    def readlink_nowait(self, nodeid: int) -> bytes | MustWait:
        inode = self._cache.inode(nodeid & MAX_INO)
        return MUST_WAIT if inode is None else inode.target

    async def readlink(self, nodeid: int) -> bytes:
        found = await self.getattr(nodeid)
        assert found.inode is not None
        return found.inode.target

    def access(self, mask: int) -> None:
        """Raises ReadOnly for a mask that includes writing. Every other access is allowed: the
        kernel checks permissions where the mount has `default_permissions`."""
        if mask & os.W_OK:
            self.refuse_write()

    def refuse_write(self) -> Never:
        """Raises ReadOnly."""
        raise ReadOnly("the file system is read-only")

    def refuse_writing(self, flags: int) -> None:
        """Raises ReadOnly for flags of an open that may change a file. The kernel's mount flag does
        not suffice: `mount -o remount,rw` clears it without a request to the client."""
        if flags & _CHANGES:
            self.refuse_write()

    # ---- files ----

    def open_nowait(self, nodeid: int, flags: int, pid: int = 0) -> int | MustWait:
        """Returns a file handle. Signals to `pid` (0: unknown) interrupt reads."""
        handle = self.open_file_nowait(nodeid, flags, pid)
        return MUST_WAIT if handle is MUST_WAIT else self.files.table.add(handle)

    async def open(self, nodeid: int, flags: int, pid: int = 0) -> int:
        """Opens a file at the server and returns its handle; a small file is complete then. Raises
        Stale when the name must be looked up again."""
        return self.files.table.add(await self.open_file(nodeid, flags, pid))

    def open_file_nowait(self, nodeid: int, flags: int, pid: int = 0) -> FileHandle | MustWait:
        """Returns an open file without a number: the transport adds it to `files.table`, or drops
        it."""
        self.refuse_writing(flags)
        inode = self._cache.inode(nodeid & MAX_INO)
        if inode is None:
            return MUST_WAIT
        if inode.kind is Kind.DIRECTORY:
            raise IsADirectory("a directory cannot be opened as a file")
        return self.files.open_warm(inode, pid) or MUST_WAIT

    def open_published(self, nodeid: int, flags: int) -> tuple[int, Inode, int] | MustWait | None:
        """Returns (descriptor, inode, tier) of a published file, for passthrough; the caller closes
        the descriptor. None: not a file, or empty; use `open_file_nowait`."""
        self.refuse_writing(flags)
        inode = self._cache.inode(nodeid & MAX_INO)
        if inode is None:
            return MUST_WAIT
        if not inode.size or inode.kind is not _FILE:
            return None
        if (opened := self.files.open_published(inode)) is None:
            return MUST_WAIT
        self.files.note_passthrough(inode.size)
        return opened[0], inode, opened[2]

    async def open_file(self, nodeid: int, flags: int, pid: int = 0) -> FileHandle:
        """Returns an open file without a number, opened at the server. Raises as `open`."""
        self.refuse_writing(flags)
        ino = nodeid & MAX_INO
        try:
            inode = self._cache.inode(ino) or (await self.getattr(nodeid)).inode
            assert inode is not None
            return await self.files.open(inode, pid)
        except Stale:
            if self._is_open(ino):
                self.on_given_again(ino)
            self._cache.forget_inode(ino)
            raise

    def adopt(self, fh: int, inode: Inode) -> None:
        """Adds a file that a predecessor had open under the number `fh`."""
        self.files.adopt(fh, inode)

    def opener(self, fh: int) -> int:
        """Returns the pid that opened a file."""
        return self.files.table.get(fh).pid

    # ---- directories ----

    def opendir(self, nodeid: int, pid: int = 0, fh: int = 0) -> int:
        """Returns a directory handle: `fh`, or a new number if `fh` is 0. Raises NotADirectory."""
        ino = nodeid & MAX_INO
        inode = self._cache.inode(ino)
        if inode is not None and inode.kind is not Kind.DIRECTORY:
            raise NotADirectory("not a directory")
        return self._directories.add(DirectoryHandle(ino, pid), fh)

    def knows_directory(self, fh: int) -> bool:
        """Returns whether this process opened `fh`; a predecessor's must be opened again."""
        return fh in self._directories

    def readdir_nowait(self, fh: int, cookie: int) -> Entries | MustWait:
        """Returns entries after `cookie` (0: the start), none at the end. There may be more: the
        caller continues with the cookie of the last entry. Valid until the next await."""
        handle = self._directories.get(fh)
        if cookie == 0:
            handle.rewind()
        place = handle.position(cookie)
        return MUST_WAIT if isinstance(place, FetchPage) else self._entries(handle, cookie, place)

    async def readdir(self, fh: int, cookie: int) -> Entries:
        """Returns the same as `readdir_nowait`, after fetching the page from the server."""
        handle = self._directories.get(fh)
        place = handle.position(cookie)
        for _ in range(MAX_PAGES_PER_SEEK):
            if not isinstance(place, FetchPage):
                return self._entries(handle, cookie, place)
            handle.put(await self._page(handle.ino, place.mark))
            place = handle.first_row() if place.exactly else handle.position(cookie)
        raise CacheFSError("a directory without an end")

    def directory_opener(self, fh: int) -> int:
        """Returns the pid that opened a directory."""
        return self._directories.get(fh).pid

    def releasedir(self, fh: int) -> None:
        self._directories.remove(fh)

    async def _page(self, ino: int, mark: Mark) -> Page:
        asked_at = self._cache.noted.position
        listing = await self._ask_about(
            ino, lambda ino: m.ListDir(self.namespace, ino, mark.after), m.Listing
        )
        expires_at = self._clock() + kernel_time(listing.valid_for_s)
        records = [bytes(entry.inode) for entry in listing.entries]
        names = [entry.name for entry in listing.entries]
        inodes = decode_inodes(records)
        page = Page(mark.start, names, inodes, listing.next, expires_at, asked_at)
        listed = [*zip(names, inodes, records, strict=True)]
        outdated = self._cache.noted.since(asked_at, ino)
        if outdated is not None:
            listed = [one for one in listed if not outdated(one[0])]
        self._put_listing(ino, listed, expires_at)
        return page

    def _put_listing(self, parent: int, listed: list[Listed], expires_at: float) -> None:
        changed = self._cache.changed(listed)
        if self.files.has_adopted:
            changed = [inode for _, inode, _ in listed]
        for inode in changed:
            self._check_reused(inode)
        self._cache.put_listing(parent, listed, expires_at)

    def _entries(self, handle: DirectoryHandle, cookie: int, place: int) -> Entries:
        page = handle.page
        assert page is not None
        if place >= len(page.names):
            handle.page = None  # read to the end: a handle that stays open holds no names
        valid_for_s = max(0.0, page.expires_at - self._clock())
        outdated = functools.partial(self._cache.noted.since, page.asked_at, handle.ino)
        dots = dots_after(cookie, handle.ino, self._cache.parent(handle.ino))
        return Entries(dots, page, place, valid_for_s, outdated)

    # ---- events of the server ----

    def on_event(self, event: m.Message) -> None:
        """Handles an Invalidate or a TierState; ignores other events."""
        if isinstance(event, m.TierState):
            self.files.published.changed(event.tier, in_service=event.in_service)
            if event.doubtful:
                self._doubt(event.tier)
            return
        if not isinstance(event, m.Invalidate) or event.namespace != self.namespace:
            return
        if self._root.may_have_moved(event.entries):
            self._root_in_doubt.set()
        if event.everything:
            self.invalidate_everything()
            return
        entries = self._root.below(event.entries)
        for parent, name in entries:
            self._cache.invalidate(parent, name)
        self.on_invalidated(entries, False)

    def _doubt(self, tier: int) -> None:
        """Distrusts all pages read from a tier, and all open files that read from it."""
        self.keeps_pages = False
        self.files.doubt(tier)
        self.on_doubt(tier)

    def on_reconnected(self, attached: m.Attached) -> None:
        """Drops the state of the previous session: this client may have missed events."""
        self.files.published.trust_all()
        self._adopt_root(attached)

    def _root_of(self, attached: m.Attached) -> Root:
        path = namespace_base(self._attach.source.url) if self._attach is not None else b""
        return Root(attached.root, path)

    def _adopt_root(self, attached: m.Attached) -> None:
        """Uses another mounted directory, after its source was mounted again; invalidates all."""
        self._root = self._root_of(attached)
        if attached.namespace != self.namespace:
            log.error("the server lost this source's namespace: open files fail, mount again")
            self.namespace = self.files.namespace = attached.namespace
        self.invalidate_everything()

    def invalidate_everything(self) -> None:
        """Invalidates all names and attributes, here and in the kernel."""
        names = self._cache.names()
        self._cache.invalidate_everything()
        self.on_invalidated(names, True)

    async def _ask_about(
        self, ino: int, question: Callable[[int], m.Message], expected: type[Reply]
    ) -> Reply:
        """Sends a request about an ino of the mount; repeats it if the mounted root has moved."""
        try:
            return await self._node.ask(question(self._root.real(ino)), expected)
        except Stale:
            if ino != ROOT_INO or not await self._root_moved():
                raise
        return await self._node.ask(question(self._root.real(ino)), expected)

    async def _root_moved(self) -> bool:
        """Returns whether another source replaced the one at the mounted path."""
        if self._attach is None:
            return False
        try:
            attached = await self._node.ask(self._attach, m.Attached)
        except CacheFSError as err:
            log.info("the mounted directory cannot be attached again: %s", err.one_line())
            return False
        if (attached.namespace, attached.root.ino) == (self.namespace, self._root.ino):
            return False
        log.info("the mounted directory was replaced by another one")
        self._adopt_root(attached)
        return True

    async def follow_root(self) -> None:
        """Attaches again after changes at the mounted path, until cancelled: the server may answer
        names of the former directory from its cache, so no request would find out."""
        while True:
            await self._root_in_doubt.wait()
            self._root_in_doubt = trio.Event()
            await self._root_moved()

    async def report_uses(self) -> None:
        """Reports warm opens to the server every second, until cancelled."""
        while True:
            await trio.sleep(REPORT_USES_S)
            self.files.report_uses()

    async def read_names_ahead(self) -> None:
        """Lists directories whose names are looked up one by one, until cancelled."""
        async for ino in self._reading:
            try:
                mark = FIRST
                for _ in range(PAGES):
                    page = await self._page(ino, mark)
                    if not page.next:
                        break
                    mark = Mark(page.end, page.next)
            except CacheFSError as err:  # a lookup of a name raises it
                log.debug("names of inode %d were not read ahead: %s", ino, err.one_line())

    def close(self) -> None:
        """Closes every descriptor of open files."""
        self.files.close()

    # ---- the cache ----
    def _check_reused(self, inode: Inode) -> None:
        """Detects, before `inode` is recorded, that its ino belongs to another file: the server's
        metadata store was rolled back. A directory keeps its nodeid, with another generation."""
        known = self._cache.inode(inode.ino) or self.files.pop_adopted(inode)
        if known is not None and known.nonce != inode.nonce and inode.ino != ROOT_INO:
            if not self._warned_of_rollback:
                self._warned_of_rollback = True
                log.warning(
                    "inode %d is another file now: the metadata store was rolled back", inode.ino
                )
            if inode.kind is _FILE:
                self.on_given_again(inode.ino)
            else:
                self._cache.forget_names()  # some may be those of the former directory

    def _is_open(self, ino: int) -> bool:
        return self.files.table.is_open(ino) or self.is_open_elsewhere(ino)

    def _put(self, inode: Inode, expires_at: float) -> None:
        self._check_reused(inode)
        self._cache.put_inode(inode.ino, encode_inode(inode), expires_at)

    def _put_found(self, parent: int, name: bytes, inode: Inode | None, expires_at: float) -> None:
        if inode is not None:
            self._put(inode, expires_at)
        self._cache.put_name(parent, name, inode, expires_at)
        if inode is not None and inode.kind is Kind.DIRECTORY:
            self._cache.put_parent(inode.ino, parent)
