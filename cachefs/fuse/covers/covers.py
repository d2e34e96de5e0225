"""Lays and removes the covers of a mount on the orders of the server, and reports each change.

The server's rule is: uncover first, then act. So a cover is reported as removed only when it is,
and as laid whenever it may be: also an order in progress, after a reconnect. Orders are executed
one by one in a thread, because the loop must answer the kernel's lookups. Belongs to one trio
loop. Cancellation leaves the covers for a successor, which finds them in mountinfo.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import trio

from cachefs.client.sockets import close_fd
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError
from cachefs.core.mountinfo import Mount
from cachefs.fuse.covers.covered_mount import CoveredMount
from cachefs.fuse.covers.mount_changes import MountChanges
from cachefs.fuse.covers.orders import MAX_COVERS, LayOrder, Order, Orders, RemoveOrder
from cachefs.fuse.covers.place import place_of

log = logging.getLogger(__name__)

WATCH_S: Final = 0.5
TOUCHES: Final = 6  # looks after the order to distrust all names, which the kernel follows later
# A missing cover is reported after this many looks: `umount -R` removes the covers and then the
# mount, and a cover that is laid again between makes it fail.
LOOKS: Final = 2
END_S: Final = 5.0  # for removing all covers; a lazy unmount removes the rest


class Server(Protocol):
    """The part of the connection that is used here."""

    knows_covers: bool

    @property
    def is_connected(self) -> bool: ...

    def report(self, body: m.Message) -> None: ...


class Covers:
    """The covers of `mount`. `base`: the directory of the namespace that it shows. `on_unmounted`
    is called when another program removed the cover of the mount's root: an unmount of the path."""

    def __init__(self, mount: CoveredMount, base: bytes, on_unmounted: Callable[[], None]) -> None:
        self.mount = mount
        self._base = base
        self._on_unmounted = on_unmounted
        self._orders = Orders()
        self._ordered = trio.Event()
        # view -> its loss is an unmount by others: it lies over the root of the mount, and neither
        # this client nor, in its place, the server was to remove it.
        self._known: dict[int, bool] = {}
        self._missing: dict[int, int] = {}  # view -> looks that did not find its cover
        self._busy: Order | None = None  # in progress
        self._lock = trio.Lock()
        self._is_ending = False
        self._touches = 0  # to do
        self._server: Server
        self._is_mounted = trio.Event()
        if mount.device:
            self._is_mounted.set()

    # ---- sessions ----

    def greeted(self, server: Server) -> None:
        """Reports the covers of the mount to the server of a new session, before it answers Attach:
        a server that was started again then knows them before it changes anything. A server that
        does not know covers has them removed."""
        self._server = server
        for order in self._orders.drop_covers():
            os.close(order.tree)
        self._adopt(self.mount.found())
        for view in {*self._known, *self._in_progress()}:
            if server.knows_covers:
                server.report(m.CoverChanged(view, covered=True))
            else:
                self._put(RemoveOrder(view))

    def mounted(self, device: str) -> None:
        """Notes that the mount is there, and its device. Orders wait for it: the server gives some
        as soon as the client has connected."""
        self.mount.device = device
        self._is_mounted.set()

    def distrusted(self) -> None:
        """Notes that the kernel distrusts all names. It removes a cover below the root of the mount
        when it looks up a name on its path again: that is done soon, and reported."""
        self._touches = TOUCHES

    def _adopt(self, found: dict[int, Mount]) -> None:
        self._known = {view: self.mount.is_root(cover) for view, cover in found.items()}
        self._missing.clear()

    def _in_progress(self) -> set[int]:
        return {self._busy.view} if isinstance(self._busy, LayOrder) else set()

    # ---- orders ----

    def cover(self, event: m.Cover, tree: int | None) -> None:
        """Queues an order to cover; owns the descriptor."""
        place = place_of(event.path, self._base)
        if tree is None or place is None:
            close_fd(tree)
            return self._report(event.view, "the mount does not show that directory")
        if self._is_ending or len(self._known) + self._orders.covers() >= MAX_COVERS:
            os.close(tree)
            cause = "the mount ends" if self._is_ending else f"it has {MAX_COVERS} covers"
            return self._report(event.view, cause)
        self._put(LayOrder(event.view, event.ino, event.path, tree))

    def uncover(self, event: m.Uncover) -> None:
        """Queues an order to uncover. Answers at once for a view without a cover."""
        waiting = self._orders.has(event.view)
        if event.view in self._known or waiting or event.view in self._in_progress():
            self._put(RemoveOrder(event.view))
        else:
            self._server.report(m.CoverChanged(event.view, covered=False))

    def _put(self, order: Order) -> None:
        tree = self._orders.put(order)
        if tree >= 0:
            os.close(tree)
        self._ordered.set()

    def _report(self, view: int, cause: str) -> None:
        log.info("view %d does not cover its directory: %s", view, cause)
        self._server.report(m.CoverChanged(view, covered=False, reason=cause))

    async def run(self) -> None:
        """Executes orders and watches the covers, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            await self._is_mounted.wait()
            while True:
                await self._ordered.wait()
                self._ordered = trio.Event()
                async with self._lock:
                    while (order := self._orders.next()) is not None:
                        await self._execute(order)

    async def _execute(self, order: Order) -> None:
        self._busy = order
        try:
            if isinstance(order, LayOrder):
                await self._lay(order)
            else:
                await self._remove(order.view)
        finally:
            self._busy = None

    async def _lay(self, order: LayOrder) -> None:
        place = place_of(order.path, self._base)
        assert place is not None
        lay = functools.partial(
            self.mount.lay, order.view, order.tree, place, order.ino, self._orders.has
        )
        failure = await self._try(lay)
        if failure:
            self._known.pop(order.view, None)
            return self._report(order.view, failure)
        self._known[order.view] = not place.inside
        self._missing.pop(order.view, None)
        self._server.report(m.CoverChanged(order.view, covered=True))
        log.info("covered %s", os.fsdecode(order.path) or "the root")

    async def _remove(self, view: int) -> None:
        """Uncovers. A cover that cannot be removed is not reported: the server then removes it, or
        empties the tree, at its deadline."""
        self._expect_loss_of([view])
        failure = await self._try(functools.partial(self.mount.remove, view))
        if failure:
            return log.error("a cover cannot be removed: %s", failure)
        self._known.pop(view, None)
        self._missing.pop(view, None)
        self._server.report(m.CoverChanged(view, covered=False))

    def _expect_loss_of(self, views: Iterable[int]) -> None:
        self._known |= dict.fromkeys(self._known.keys() & views, False)

    async def _try(self, act: Callable[[], None]) -> str:
        """Calls `act` in a thread. Returns the cause of its failure, or ""."""
        try:
            await trio.to_thread.run_sync(act, abandon_on_cancel=True)
        except CacheFSError as err:
            return err.one_line()
        except OSError as err:
            return err.strerror or str(err)
        return ""

    # ---- covers that others remove ----

    async def _watch(self) -> None:
        is_due = False
        with MountChanges() as changes:
            while True:
                await trio.sleep(WATCH_S)
                if changes.seen() or is_due or self._missing or self._touches:
                    async with self._lock:
                        is_due = not await self._looked(is_again=is_due)

    async def _looked(self, *, is_again: bool) -> bool:
        """Looks, and returns whether that was possible. Logs the first failure."""
        try:
            await self._look()
        except OSError as err:
            level = logging.DEBUG if is_again else logging.WARNING
            log.log(level, "the covers cannot be compared with the table of mounts: %s", err)
            return False
        return True

    async def _look(self) -> None:
        if self._touches:
            self._touches -= 1
            await self._try(self.mount.look_up)
        if self.mount.has_unknown():
            self._expect_loss_of(self._known)  # their records may be lost
            await self._try(self.mount.remove_unknown)
        self._compare(self.mount.found())

    def _compare(self, found: dict[int, Mount]) -> None:
        """Reports covers that a predecessor laid, and those that are missing for the `LOOKS`th
        time, or once if the kernel distrusts their paths."""
        for view in found.keys() - self._known:
            self._known[view] = self.mount.is_root(found[view])
            self._server.report(m.CoverChanged(view, covered=True))
        # The server may have removed a cover itself, of which its order waits here.
        gone = {view for view in self._known.keys() - found if not self._orders.has(view)}
        missing = {view: self._missing.get(view, 0) + 1 for view in gone}
        self._missing = {view: looks for view, looks in missing.items() if looks < self._most(view)}
        for view in missing.keys() - self._missing:
            # A server that this client has no connection to may have removed it.
            is_unmount = self._known.pop(view) and self._server.is_connected
            if is_unmount and self.mount.is_there():
                log.info("stopping: another program unmounted the cover of the mount point")
                return self._on_unmounted()
            self._report(view, "the kernel or another program removed the cover")

    def _most(self, view: int) -> int:
        return 1 if self._touches and not self._known[view] else LOOKS

    # ---- the end ----

    def gone(self) -> None:
        """Reports that the mount has ended, with all covers."""
        for view in self._known:
            self._server.report(m.CoverChanged(view, covered=False, reason="unmounted"))
        self._known.clear()

    async def end(self) -> None:
        """Removes all covers, as far as that is possible in `END_S`, and refuses further ones. The
        mount must be served in between."""
        self._is_ending = True
        for order in self._orders.drop_covers():
            os.close(order.tree)
        with trio.move_on_after(END_S):
            async with self._lock:
                for view in list(self._known):
                    await self._remove(view)
