"""The migration of one node: executes the actions of `worker.migration.decisions`. Owns the tasks
of the calls in flight; the cache's fills transfer the bytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from cachefs.core.cluster import Answer as PeerAnswer
from cachefs.core.cluster import Had, Have, Offer
from cachefs.core.errors import (
    CacheFSError,
    DeadlineExceeded,
    IsADirectory,
    NoSpace,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
)
from cachefs.core.messages import Done, Failure, error_of
from cachefs.core.model import ContentId, NamespaceId, Origin
from cachefs.core.pages import range_bytes
from cachefs.core.placement import View
from worker.migration import events as e
from worker.migration.decisions import DEFAULT_BYTES_PER_S
from worker.migration.decisions import MigrationDecisions as Decisions
from worker.runtime.tasks import Tasks, wait_at_most
from worker.store.holdings import Holding

log = logging.getLogger(__name__)

TICK_S: Final = 0.25  # while blocks are to be moved
IDLE_TICK_S: Final = 5.0
CALL_S: Final = 10.0  # the timeout of a peer's or the master's reply
SCAN_S: Final = 60.0
BRING_S: Final = 120.0
MOST_FRESH: Final = 10_000  # contents filled between two ticks; with more, all are scanned

T = TypeVar("T")

AskPeer = Callable[[str, Have | Offer], Awaitable[PeerAnswer]]  # (url, call)


class CachedBlocks(Protocol):
    """The node's cache, as migration calls it."""

    async def holdings(
        self, after: bytes, limit: int, *, leaves_out_silent: bool = False
    ) -> tuple[Holding, ...]:
        """Returns up to `limit` contents with keys after `after`, in order. Raises OSError where a
        disk gives no answer, unless such disks are left out."""

    async def bits(self, key: bytes) -> int:
        """Returns the bitmap of the cached pages of a content. Raises OSError where a disk that may
        have some gives no answer."""

    async def bring(
        self, namespace: NamespaceId, ino: int, first: int, end: int, *, peers_only: bool
    ) -> int:
        """Fetches pages; see `worker.cache.serving.CacheServing`."""


class Migration:
    """The migration of one node. `Membership` calls `on_view`, `PeerServer` `offered`, the cache
    `came` and `owners_changed`; `run` is its task. All methods belong to one event loop."""

    def __init__(
        self,
        worker: str,
        url: str,
        cache: CachedBlocks,
        *,
        locate: Callable[[NamespaceId, int], Awaitable[Origin]],
        ask_peer: AskPeer,
        refresh_view: Callable[[], Awaitable[Any]],
        free_bytes: Callable[[], int],
        on_settled: Callable[[int], None] = lambda epoch: None,
        bytes_per_s: float = DEFAULT_BYTES_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`worker` is this worker's id and `url` its address for peers. `refresh_view` fetches the
        view from the master and passes it to `on_view`. `free_bytes` returns the free space of the
        cache. `on_settled` is called with each settled epoch (`worker.migration.decisions`)."""
        self._worker = worker
        self._url = url
        self._cache = cache
        self._locate = locate
        self._ask_peer = ask_peer
        self._refresh_view = refresh_view
        self._free_bytes = free_bytes
        self._on_settled = on_settled
        self._clock = clock
        self._decisions = Decisions(worker, bytes_per_s=bytes_per_s)
        self._tasks = Tasks()
        self._fresh: dict[bytes, tuple[int, int]] = {}  # key -> (size, replicas)
        self._is_reporting = False
        self._wake = asyncio.Event()
        self._refreshing = False
        self._closed = False

    @property
    def settled(self) -> int:
        """The last settled epoch, for `Heartbeat.settled`."""
        return self._decisions.settled

    def on_view(self, view: View) -> None:
        """Handles a view of the members, new or unchanged."""
        self._handle(e.ViewReceived(view))

    def offered(self, offer: Offer) -> Done:
        """Accepts a peer's `Offer`. Raises Stale if its epoch is earlier than this worker's,
        NoSpace, and Unavailable if the peer may retry later."""
        answer, *rest = self._decide(e.OfferReceived(offer))
        for action in rest:
            self._act(action)
        if isinstance(answer, e.OfferReply) and answer.failure is not None:
            raise answer.failure
        return Done()

    def came(self, key: bytes, size_bytes: int, replicas: int) -> None:
        """Records that pages of a content with several owners were filled here."""
        if not self._fresh:
            self._wake.set()
        if len(self._fresh) < MOST_FRESH:
            self._fresh[key] = size_bytes, replicas
        else:
            self.owners_changed()

    def owners_changed(self) -> None:
        """Handles a replica count that has grown, or has become known here."""
        self._handle(e.OwnersChanged())

    async def run(self) -> None:
        """Runs until cancelled, which also cancels all calls in flight."""
        try:
            while True:
                self._wake.clear()
                self._handle(e.TimePassed())
                if self._fresh and not self._is_reporting:
                    self._is_reporting = True
                    self._tasks.start(self._report_fresh())
                is_at_work = self._decisions.is_at_work or self._fresh
                pause_s = TICK_S if is_at_work else IDLE_TICK_S
                await wait_at_most(self._wake, pause_s)
        finally:
            self._closed = True
            await self._tasks.close()

    def status(self) -> dict[str, int]:
        """Returns plain values for `cachefs status`."""
        return self._decisions.status()

    # ---- decisions ----

    def _handle(self, event: e.Event) -> None:
        for action in self._decide(event):
            self._act(action)

    def _decide(self, event: e.Event) -> list[e.Action]:
        decisions = self._decisions
        settled, was_at_work = decisions.settled, decisions.is_at_work
        actions = decisions.handle(event, self._clock())
        if decisions.settled > settled:
            self._on_settled(decisions.settled)
        if decisions.is_at_work and not was_at_work:
            self._wake.set()
        return actions

    def _act(self, action: e.Action) -> None:
        if self._closed:
            return
        match action:
            case e.Scan():
                self._tasks.start(self._scan(action))
            case e.AskHave():
                self._tasks.start(self._ask_have(action))
            case e.SendOffer():
                self._tasks.start(self._send_offer(action))
            case e.LookAt():
                self._tasks.start(self._look_at(action))
            case e.Bring():
                self._tasks.start(self._bring(action))
            case e.RefreshView():
                self._refresh()
            case e.OfferReply():
                raise AssertionError("an answer is given by `offered`")

    def _refresh(self) -> None:
        if not self._refreshing:
            self._refreshing = True
            self._tasks.start(self._refresh_once())

    async def _refresh_once(self) -> None:
        try:
            await self._within(CALL_S, self._refresh_view())
        except CacheFSError as err:
            log.debug("the view of the members: %s", err.one_line())
        finally:
            self._refreshing = False

    # ---- sending ----

    async def _report_fresh(self) -> None:
        try:
            fresh, self._fresh = self._fresh, {}
            found = [
                Holding(key, size_bytes, await self._cache.bits(key), replicas)
                for key, (size_bytes, replicas) in fresh.items()
            ]
            self._handle(e.Filled(tuple(found)))
        except OSError as err:
            log.debug("new pages are found by a scan: %s", err)
            self.owners_changed()
        finally:
            self._is_reporting = False

    async def _scan(self, scan: e.Scan) -> None:
        try:
            holdings = self._cache.holdings(
                scan.after, scan.limit, leaves_out_silent=scan.leaves_out_silent
            )
            found = await self._within(SCAN_S, holdings)
        except (OSError, CacheFSError) as err:
            log.warning("cannot read the index, migration waits and retries: %s", err)
            return self._handle(e.Scanned(scan.epoch, (), b"", failed=True))
        after = found[-1].key if len(found) == scan.limit else b""
        self._handle(e.Scanned(scan.epoch, found, after))

    async def _ask_have(self, ask: e.AskHave) -> None:
        pages: dict[bytes, int] | None = None
        try:
            pages = await self._pages_of(ask.peer.url, ask.contents)
        except CacheFSError as err:
            log.debug("worker %s: %s", ask.peer.id[:8], err.one_line())
        self._handle(e.HaveReplied(ask.epoch, ask.peer.id, pages))

    async def _pages_of(self, url: str, contents: tuple[bytes, ...]) -> dict[bytes, int]:
        """Returns the page bitmaps that a peer has. Raises the peer's or the network's failure, and
        Unavailable where a disk of the peer gives no answer."""
        answer = await self._call(url, Have([*contents]))
        if not isinstance(answer, Had) or len(answer.pages) != len(contents):
            raise ProtocolError("the peer's reply does not match the Have request")
        if answer.incomplete:
            raise Unavailable("a disk of the peer gives no answer")
        bitmaps = (int.from_bytes(data, "little") for data in answer.pages)
        return dict(zip(contents, bitmaps, strict=True))

    async def _send_offer(self, send: e.SendOffer) -> None:
        outdated = await self._outdated([*dict.fromkeys(key for key, _ in send.blocks)])
        self._handle(e.Outdated(send.epoch, send.peer.id, outdated))
        both = zip(send.blocks, send.replicas, strict=True)
        kept = {block: count for block, count in both if block[0] not in outdated}
        offer = Offer(self._worker, self._url, send.epoch, [*kept], [*kept.values()])
        failure: CacheFSError | None = None
        try:
            if kept:
                await self._call(send.peer.url, offer)
        except CacheFSError as err:
            failure = err
        self._handle(e.OfferReplied(send.epoch, send.peer.id, failure))

    async def _outdated(self, keys: Sequence[bytes]) -> frozenset[bytes]:
        """Returns the contents that, according to the master, no file has any more."""
        gone = await asyncio.gather(*(self._is_outdated(key) for key in keys))
        return frozenset(key for key, is_gone in zip(keys, gone, strict=True) if is_gone)

    async def _is_outdated(self, key: bytes) -> bool:
        content = ContentId.of_key(key)
        try:
            located = self._locate(content.namespace, content.ino)
            return (await self._within(CALL_S, located)).content != content
        except (Stale, NotFound, IsADirectory):
            return True
        except CacheFSError:
            return False  # the master does not reply

    async def _call(self, url: str, call: Have | Offer) -> PeerAnswer:
        answer = await self._within(CALL_S, self._ask_peer(url, call))
        if isinstance(answer, Failure):
            raise error_of(answer)
        return answer

    async def _within(self, limit_s: float, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(limit_s):
                return await work
        except TimeoutError as err:
            raise DeadlineExceeded(f"no answer within {limit_s:g} s") from err

    # ---- receiving ----

    async def _look_at(self, look: e.LookAt) -> None:
        pages: dict[bytes, int] | None = None
        try:
            theirs = await self._pages_of(look.url, look.contents)
            pages = {
                key: bits & ~await self._cache.bits(key) for key, bits in theirs.items() if bits
            }
        except (CacheFSError, OSError) as err:
            log.debug("worker %s: %s", look.giver[:8], err)
        self._handle(e.PagesCompared(look.epoch, look.giver, pages))

    async def _bring(self, bring: e.Bring) -> None:
        size_bytes, failure = 0, None
        try:
            size_bytes = await self._within(BRING_S, self._brought_bytes(bring))
        except CacheFSError as err:
            failure = err
        self._handle(e.PagesFetched(bring, size_bytes, failure))

    async def _brought_bytes(self, bring: e.Bring) -> int:
        content = ContentId.of_key(bring.key)
        origin = await self._locate(content.namespace, content.ino)
        if origin.content != content:
            raise Stale("the file has other contents now")
        pages = await self._cache.bring(
            content.namespace, content.ino, bring.first, bring.end, peers_only=True
        )
        size_bytes = range_bytes(origin.size, bring.first, bring.first + pages)
        if pages < bring.end - bring.first:
            if self._free_bytes() < range_bytes(origin.size, bring.first, bring.end):
                raise NoSpace("the cache is full")
            raise NotFound("the peers did not send all pages")
        return size_bytes
