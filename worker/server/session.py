"""A session of the node socket: the requests in flight and the open handles of one client.

Translates frames into calls of the worker and of the metadata service, and errors into `Failure`
(the wire edge). Requests and handles end with the session.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import cachefs
from cachefs.core import messages as m
from cachefs.core.errors import (
    CacheFSError,
    DeadlineExceeded,
    Interrupted,
    PositionGone,
    ProtocolError,
    Unreachable,
)
from cachefs.core.model import NamespaceId
from cachefs.core.services import COMMAND_MASTER_WAIT_S, master_wait_s
from worker.cache.grants import TierView
from worker.runtime.process_limits import classified
from worker.server import operators, orders
from worker.server.channel import Channel
from worker.server.request_deadlines import RequestDeadlines
from worker.stats.arrivals import NEVER_S

if TYPE_CHECKING:
    from worker.cache.grants import Grant
    from worker.cache.opening import Opening
    from worker.server.server import NodeServer

log = logging.getLogger(__name__)

Answer = tuple[m.Message, int | None]
_UNKNOWN = TierView(0, -1, True, -1)
MAX_IN_FLIGHT = 4096  # requests of one session; more are refused, not queued


class Session:
    """A session. Starts reading at once; calls `server.forget(self)` at its end."""

    def __init__(self, server: NodeServer, sock: socket.socket) -> None:
        self.server = server
        self.role = ""
        self.pid = 0
        self.mountpoint = ""
        self.facts: m.MountFacts | None = None
        self.is_followed = False  # a failed client of this mount gets a successor
        self.sources: dict[NamespaceId, str] = {}
        self._handles: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._openings: dict[int, Opening] = {}
        self._patience = RequestDeadlines(server.deadline_s)
        self._late: set[int] = set()  # overdue requests that are being cancelled
        self._event_tasks: set[asyncio.Task[None]] = set()
        self._many_tiers = False  # the client supports several tiers
        self._takes_tiers = False  # its Attach was answered: it drops earlier events
        self._sent_tiers: dict[int, TierView] = {}  # as the client knows them
        self.lacks_tiers = False  # `send_tiers` found no descriptor left, and is to be repeated
        self._covers = False  # the client lays covers
        self.defaults = (0, 0, 0, 0)  # see `Hello.defaults`
        self._channel = Channel(sock, self._frame, self._ended)

    @property
    def follows(self) -> bool:
        """Whether it keeps the server running and gets events: a mount's, or a library's."""
        return self.role in ("fuse", "library")

    # ---- frames ----

    def _frame(self, data: bytes, fd: int | None) -> None:
        try:
            frame = m.decode(data)
        except ProtocolError as err:
            orders.close_descriptor(fd)
            return self._channel.close(err)
        if isinstance(frame.body, m.AnnounceFunction):
            return self._reply(frame.id, orders.announce_function(self, frame.body, fd))
        orders.close_descriptor(fd)
        now = _NOWAIT.get(type(frame.body))
        if now is not None:
            return now(self, frame.id, frame.body)
        later = _LATER.get(type(frame.body))
        if later is None or not (self.role or isinstance(frame.body, m.Hello)):
            error = ProtocolError(f"unexpected {type(frame.body).__name__}")
            return self._reply(frame.id, m.failure_of(error))
        if len(self._tasks) + len(self._openings) >= MAX_IN_FLIGHT:
            return self._reply(frame.id, m.failure_of(Unreachable("too many requests in flight")))
        self._patience.begin(frame.id, frame.body, time.monotonic())
        if isinstance(frame.body, m.Open) and self._opens_soon(frame.id, frame.body):
            return
        self._start(frame.id, later(self, frame.body))

    def _start(self, id: int, work: Awaitable[Answer]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._answer(id, work))
        self._tasks[id] = task
        task.add_done_callback(lambda _: self._ended_task(id, work))
        return task

    def _ended_task(self, id: int, work: Awaitable[Answer]) -> None:
        """Replies for a task that was cancelled before its first step, and closes its coroutine."""
        self._tasks.pop(id, None)
        if asyncio.iscoroutine(work):
            work.close()
        if self._patience.about(id) is not None:
            self._interrupted(id)

    async def _answer(self, id: int, work: Awaitable[Answer]) -> None:
        if self.role == "cli":
            master_wait_s.set(COMMAND_MASTER_WAIT_S)
        try:
            body, fd = await work
        except asyncio.CancelledError:
            self._interrupted(id)
            raise
        except Exception as err:  # noqa: BLE001 -- the client must get a reply
            body, fd = self._failure(id, err), None
        self._reply(id, body, fd)

    def _interrupted(self, id: int) -> None:
        error: CacheFSError = Interrupted("the caller was interrupted")
        if id in self._late:
            error = DeadlineExceeded(f"no answer within {self.server.deadline_s:g} s")
        self._reply(id, m.failure_of(error))

    def _failure(self, id: int, err: Exception) -> m.Failure:
        if isinstance(known := classified(err), CacheFSError):
            return m.failure_of(known)
        log.error("request %d of pid %d failed", id, self.pid, exc_info=err)
        return m.failure_of(CacheFSError(f"internal error: {type(err).__name__}"))

    def _reply(self, id: int, body: m.Message, fd: int | None = None) -> None:
        if isinstance(body, m.Opened) and body.handle:
            if self._channel.closed:  # the client cannot release it
                self.server.worker.release(body.handle)
            else:
                self._handles.add(body.handle)
        self._patience.end(id, body, time.monotonic())
        self._late.discard(id)
        self._channel.send(m.encode(id, body), fd)

    def end_overdue(self, now: float) -> m.Message | None:
        """Fails the overdue requests; fills that they wait for continue. Returns one of them, None
        if no request is overdue."""
        found: m.Message | None = None
        for id in self._patience.overdue(now, self._moved_s):
            if id not in self._late:
                found = self._patience.about(id)
                self._late.add(id)
                self._drop(id)
        return found

    def _moved_s(self, body: m.Open | m.Ensure) -> float:
        """Returns the time of the last page from the source of a request's file (monotonic)."""
        worker = self.server.worker
        if isinstance(body, m.Ensure):
            return worker.arrivals.last_s(worker.origin_of(body.handle))
        try:
            service = self.server.service(body.namespace)
            return worker.arrivals.last_s(service.locate_nowait(body.ino))
        except CacheFSError:  # the file was removed, or is not a file
            return NEVER_S

    def send_event(self, body: m.Message) -> None:
        self._channel.send(m.encode(0, body))

    def send_tiers(self) -> None:
        """Sends the changes of the tiers since the last call, if the client has attached."""
        if not self._takes_tiers:
            return
        self.lacks_tiers = False
        for view in self.server.worker.tiers():
            if view.tier == 0 or self._many_tiers:
                try:
                    self._send_tier(view, self._sent_tiers.get(view.tier, _UNKNOWN))
                    self._sent_tiers[view.tier] = view
                except OSError:  # before anything was sent of this tier
                    self.lacks_tiers = True

    def _send_tier(self, view: TierView, sent: TierView) -> None:
        is_new = (view.pub_fd >= 0, view.number) != (sent.pub_fd >= 0, sent.number)
        if is_new and self._many_tiers:
            fd = os.dup(view.pub_fd) if view.pub_fd >= 0 else None
            event = m.PublishedDirectory(view.tier, has_descriptor=fd is not None)
            self._channel.send(m.encode(0, event), fd)
        doubtful = view.losses != (sent.losses if not is_new else 0)
        if view.in_service != sent.in_service or doubtful:
            self.send_event(m.TierState(view.in_service, view.tier, doubtful))

    def close(self) -> None:
        self._channel.close()

    # ---- covers, see `worker.views.hosts.CoverHost` ----

    def shows(self, namespace: NamespaceId) -> bool:
        return namespace in self.sources

    def send_cover(
        self, cover: int, namespace: NamespaceId, ino: int, path: bytes, fd: int
    ) -> None:
        self._channel.send(m.encode(0, m.Cover(cover, namespace, ino, path)), fd)

    def send_uncover(self, cover: int) -> None:
        self.send_event(m.Uncover(cover))

    def _cover_changed(self, id: int, body: m.CoverChanged) -> None:
        views = self.server.views
        if views is not None:
            views.reported(self, body.view, covered=body.covered, reason=body.reason)

    async def _show_views(self, namespace: NamespaceId) -> None:
        """Makes the views of a namespace right, before the client uses the names; then covers the
        mount, once the reply was sent."""
        views = self.server.views
        if views is None or self.role != "fuse":
            return
        await views.attached(namespace)
        if self._covers:
            asyncio.get_running_loop().call_soon(self._join_views)

    def _join_views(self) -> None:
        if self.server.views is not None and not self._channel.closed:
            self.server.views.joined(self)

    # ---- the end ----

    def _ended(self, error: CacheFSError | None) -> None:
        if error is not None:
            log.warning("session of pid %d: %s", self.pid, error.one_line())
        if self.server.views is not None:
            self.server.views.left(self, is_followed=self.is_followed)
        for task in [*self._tasks.values(), *self._event_tasks]:
            task.cancel()
        for opening in self._openings.values():
            opening.cancel()
        self._openings.clear()
        for handle in self._handles:
            self.server.worker.release(handle)
        self._handles.clear()
        self.server.ahead.orders.book.end_session(self)
        self.server.forget(self)

    # ---- replies at once ----

    def _lookup(self, id: int, body: m.Lookup) -> None:
        try:
            service = self.server.service(body.namespace)
            found = service.lookup_nowait(body.parent, body.name)
        except CacheFSError as err:
            return self._reply(id, m.failure_of(err))
        if found is not None:
            return self._reply(id, found)
        self._patience.begin(id, body, time.monotonic())
        self._start(id, _bare(service.lookup(body.parent, body.name)))

    def _release(self, id: int, body: m.Release) -> None:
        if body.handle in self._handles:
            self._handles.discard(body.handle)
            self.server.worker.release(body.handle)

    def _used(self, id: int, body: m.Used) -> None:
        self.server.passthrough_bytes += body.passthrough_bytes
        self.server.worker.used(body.names, body.hit_bytes)
        self.server.ahead.used(body.names, self)

    def _live(self, id: int, body: m.Done) -> None:
        """Replies to a client's probe."""
        self._reply(id, body)

    def _leaving(self, id: int, body: m.Leaving) -> None:
        self.is_followed = False

    def _take_facts(self, id: int, body: m.MountFacts) -> None:
        self.facts = body

    def _cancel(self, id: int, body: m.Cancel) -> None:
        self._drop(body.id)

    def _drop(self, id: int) -> None:
        """Cancels a request, which gets a `Failure`. Unknown ids are ignored."""
        task = self._tasks.get(id)
        if task is not None:
            task.cancel()
        opening = self._openings.pop(id, None)
        if opening is not None:
            opening.cancel()
            self._interrupted(id)

    # ---- opens without a task ----

    def _opens_soon(self, id: int, body: m.Open) -> bool:
        """Starts the open of a small file without a task. Returns False if it needs a task."""
        ready = functools.partial(self._ready, id, body)
        is_announced = self.server.ahead.announced(self, body.namespace, body.ino)
        if body.past_tier:
            return False
        try:
            opening = self.server.worker.open_soon(
                body.namespace, body.ino, ready, nonce=body.nonce
            )
        except CacheFSError as err:
            self._reply(id, m.failure_of(err))
            return True
        if opening is None:
            return False
        self._openings[id] = opening
        if not is_announced:
            self.server.ahead.opened(opening.entry.origin)
        return True

    def _ready(self, id: int, body: m.Open, opening: Opening) -> None:
        del self._openings[id]
        try:
            grant = self.server.worker.opened(opening)
        except Exception as err:  # noqa: BLE001 -- the client must get a reply
            return self._reply(id, self._failure(id, err))
        if grant is None:
            task = self._start(id, self._open_later(body, opening))
            return task.add_done_callback(lambda _: opening.taken())
        self._reply(id, *self._opened(body, grant))

    async def _open_later(self, body: m.Open, opening: Opening) -> Answer:
        return self._opened(body, await self.server.worker.opened_later(opening))

    # ---- replies of tasks ----

    async def _hello(self, body: m.Hello) -> Answer:
        if abs(body.protocol - m.PROTOCOL) > 1:
            raise ProtocolError(
                f"protocol {body.protocol} of the client is too far from {m.PROTOCOL}",
                remedy="install the same version of cachefs on both sides and mount again",
            )
        self.role, self.pid, self.mountpoint = body.role, body.pid, body.mountpoint
        self._many_tiers = body.many_tiers
        if body.covers and len(body.defaults) == len(self.defaults):
            self._covers = True
            self.defaults = body.defaults[0], body.defaults[1], body.defaults[2], body.defaults[3]
        self.is_followed = body.supervisor > 0
        try:
            self.server.joined(self)
        except CacheFSError:
            self.role = ""  # the session belongs to no mount
            raise
        first = self.server.worker.tiers()[0]
        has_dir = first.pub_fd >= 0
        welcome = m.Welcome(
            os.getpid(),
            m.PROTOCOL,
            cachefs.__version__,
            published_dir=has_dir,
            covers=self.server.views is not None,
        )
        # Earlier losses are sent, too: another session may have served the mount at that time.
        self._sent_tiers = {0: first._replace(in_service=True, losses=0)}
        return welcome, os.dup(first.pub_fd) if has_dir else None

    async def _attach(self, body: m.Attach) -> Answer:
        attached = await self.server.attach(body)
        is_new = attached.namespace not in self.sources
        if self.follows and is_new:
            self._follow(attached.namespace)
        self.sources[attached.namespace] = body.source.url
        if is_new:
            await self._show_views(attached.namespace)
        if self.follows:  # sent after the reply
            self._takes_tiers = True
            asyncio.get_running_loop().call_soon(self.send_tiers)
        return attached, None

    def _follow(self, namespace: NamespaceId) -> None:
        task = asyncio.ensure_future(self._pass_events_on(namespace))
        self._event_tasks.add(task)
        task.add_done_callback(self._events_ended)

    def _events_ended(self, task: asyncio.Task[None]) -> None:
        """Closes the session if an event could not be passed on: its client then drops all names,
        which might be outdated, and connects again."""
        self._event_tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("events to pid %d failed", self.pid, exc_info=task.exception())
            self.close()

    async def _pass_events_on(self, namespace: NamespaceId) -> None:
        service = self.server.service(namespace)
        while not self._channel.closed:
            try:
                async for event in service.events(-1):
                    if self.server.views is not None:  # uncover first
                        await self.server.views.heed(event)
                    self.send_event(event)
                return  # the service closed
            except PositionGone:  # this session was too slow for the stream
                event = m.Invalidate(namespace, -1, everything=True)
                if self.server.views is not None:
                    await self.server.views.heed(event)
                self.send_event(event)

    async def _detach(self, body: m.Detach) -> Answer:
        self.server.request_stop(body.reason or f"requested by pid {self.pid}")
        return m.Done(), None

    async def _getattr(self, body: m.GetAttr) -> Answer:
        return await self.server.service(body.namespace).getattr(body.ino), None

    async def _list(self, body: m.ListDir) -> Answer:
        limit = max(1, min(body.limit, m.LIST_LIMIT))
        service = self.server.service(body.namespace)
        return await service.list_dir(body.ino, body.after, limit), None

    async def _changed_folders(self, body: m.GetChangedFolders) -> Answer:
        service = self.server.service(body.namespace)
        await service.catch_up()
        return service.changed_folders(body.after), None

    async def _resolve(self, body: m.Resolve) -> Answer:
        return await self.server.service(body.namespace).resolve(body.path), None

    async def _open(self, body: m.Open) -> Answer:
        worker = self.server.worker
        grant = await worker.open(
            body.namespace, body.ino, past_tier=body.past_tier, nonce=body.nonce
        )
        return self._opened(body, grant)

    def _opened(self, body: m.Open, grant: Grant) -> Answer:
        handle = grant.handle
        if grant.complete and body.complete_needs_no_release:  # the descriptor suffices
            self.server.worker.release(handle)
            handle = 0
        opened = m.Opened(handle, grant.size, grant.complete, grant.fd is not None, grant.tier)
        return opened, grant.fd

    async def _ensure(self, body: m.Ensure) -> Answer:
        if body.handle not in self._handles:
            raise ProtocolError(f"handle {body.handle} is not open in this session")
        return await self.server.worker.ensure(
            body.handle,
            body.offset,
            body.size,
            past_tier=body.past_tier,
            takes_bytes=body.takes_bytes,
        )

    async def _order(self, body: m.Message) -> Answer:
        return orders.answer(self, body), None

    async def _operate(self, body: m.Message) -> Answer:
        return await operators.answer(self.server, body), None


async def _bare(work: Awaitable[m.Message]) -> Answer:
    return await work, None


# Each handler takes the messages of its key.
_NOWAIT: dict[type, Callable[[Session, int, Any], None]] = {
    m.Lookup: Session._lookup,
    m.Release: Session._release,
    m.Used: Session._used,
    m.Cancel: Session._cancel,
    m.Done: Session._live,
    m.Leaving: Session._leaving,
    m.MountFacts: Session._take_facts,
    m.CoverChanged: Session._cover_changed,
}
_LATER: dict[type, Callable[[Session, Any], Awaitable[Answer]]] = {
    m.Hello: Session._hello,
    m.Attach: Session._attach,
    m.Detach: Session._detach,
    m.GetAttr: Session._getattr,
    m.ListDir: Session._list,
    m.GetChangedFolders: Session._changed_folders,
    m.Resolve: Session._resolve,
    m.Open: Session._open,
    m.Ensure: Session._ensure,
    m.AnnounceOrder: Session._order,
    m.EndOrder: Session._order,
    m.OrderState: Session._order,
    **dict.fromkeys(operators.MESSAGES, Session._operate),
}
