"""The I/O of one `SourceSelection`: sends its requests, waits for replies, returns the reply to
read. Blocking; used by one thread, except for `abort`.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cachefs.core.errors import CacheFSError, Interrupted
from cachefs.core.model import PAGE_BYTES, Origin
from cachefs.core.pages import PageRange
from cachefs.core.placement import BLOCK_BYTES, Member
from worker.fill.source import NotHere, Purpose
from worker.peers.connections import Connections
from worker.peers.ownership_map import OwnershipMap
from worker.peers.page_request import PageRequest, WantedPages
from worker.peers.peer_health import PeerHealth
from worker.peers.source_selection import (
    TIMES,
    Action,
    Answer,
    Answered,
    Ask,
    BodyFailed,
    Candidate,
    Close,
    Event,
    Fail,
    Failed,
    GiveUp,
    Refresh,
    Refreshed,
    SourceSelection,
    Take,
    Tick,
    Times,
    UseOrigin,
)

log = logging.getLogger(__name__)

SLICE_S: Final = 0.25  # the longest time until `abort` takes effect


@dataclass(slots=True)
class PeerCounters:
    """Counters since the start. Changed under `Shared.lock`."""

    requests: int = 0
    failures: int = 0
    hedges: int = 0  # requests to a second peer because the first was slow
    wrong_pages: int = 0
    cut_off: int = 0  # fills that a peer did not do, as it did not reach the origin
    refreshes: int = 0
    fallbacks: int = 0  # reads with candidate peers that fell back to the origin


@dataclass(slots=True)
class Shared:
    """The state that all reads of one node share. `refresh` fetches the newest view in bounded time
    and raises the typed errors. `holders(key, block)` returns other workers that have a block.
    `is_cut(origin)` returns whether this node does not reach an origin."""

    ring: OwnershipMap
    connections: Connections
    headers: Mapping[str, str]
    refresh: Callable[[], object]
    holders: Callable[[bytes, int], list[Member]]
    is_cut: Callable[[Origin], bool]
    times: Times = TIMES
    clock: Callable[[], float] = time.monotonic
    peers: PeerHealth = field(default_factory=PeerHealth)
    counters: PeerCounters = field(default_factory=PeerCounters)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def candidates(self, origin: Origin, page: int, purpose: Purpose) -> list[Candidate]:
        """Returns the peers to request a page from before the origin, in order. The stand-in may
        have what this node could not read."""
        content, block = origin.content, page * PAGE_BYTES // BLOCK_BYTES
        held = self.holders(content.key, block)
        replicas = origin.rule.owners
        if purpose is Purpose.SERVE and self.is_cut(origin):
            held += self.ring.owners(content.ino, block, replicas + 1)[replicas:]
        return self.ring.candidates(content.ino, block, purpose, held, replicas=replicas)


class PeerFetch:
    """A read from peers. `find` returns the reply to read. Ended by `close`."""

    def __init__(
        self, shared: Shared, origin: Origin, found: list[Candidate], purpose: Purpose
    ) -> None:
        self._shared = shared
        self._origin = origin
        self._purpose = purpose
        self._search = SourceSelection(
            shared.peers,
            origin.content.key,
            found,
            shared.times,
            may_ask_origin=purpose is not Purpose.MIGRATE,
        )
        self._wanted = WantedPages(origin, (0, 0))
        self._exchanges: dict[Candidate, PageRequest] = {}
        self._refusal: CacheFSError | None = None
        self._is_aborted = False

    def find(self, pages: PageRange, event: Event = Tick()) -> PageRequest | None:  # noqa: B008
        """Returns the reply with the first of these pages; None if the origin is next. `event`
        reports the end of the former reply. Raises NotHere, an error that the origin replied to a
        peer, and Interrupted after `abort`."""
        self._wanted = WantedPages(self._origin, pages)
        events: list[Event] = [event]
        while True:
            for action in self._handle(events):
                if isinstance(action, Take):
                    return self._exchanges.pop(action.candidate)
                if isinstance(action, UseOrigin):
                    return None
                if isinstance(action, GiveUp):
                    raise NotHere("no peer has the pages")
                if isinstance(action, Fail):
                    assert self._refusal is not None
                    raise self._refusal
                self._do(action, events)
            if not events:
                events = self._wait()

    def _handle(self, events: list[Event]) -> list[Action]:
        shared, actions = self._shared, list[Action]()
        with shared.lock:
            now = shared.clock()
            for event in events:
                actions += self._search.handle(event, now)
            self._count(events, actions)
        events.clear()
        return actions

    def _count(self, events: Iterable[Event], actions: Iterable[Action]) -> None:
        counters, peers = self._shared.counters, self._shared.peers
        for event in events:
            counters.wrong_pages += isinstance(event, BodyFailed) and event.wrong
            counters.cut_off += isinstance(event, Answered) and event.answer is Answer.CUT_OFF
        counters.failures = peers.failures
        for peer in peers.take_new_failures():
            log.warning("worker %s does not reply: its pages are read elsewhere for now", peer)
        asked = set(self._exchanges)
        for action in actions:
            counters.refreshes += isinstance(action, Refresh)
            counters.fallbacks += isinstance(action, UseOrigin)
            if isinstance(action, Close):
                asked.discard(action.candidate)
            elif isinstance(action, Ask):
                counters.requests += 1
                peer = action.candidate.peer
                counters.hedges += bool(asked) and all(one.peer != peer for one in asked)

    def _do(self, action: Action, events: list[Event]) -> None:
        if isinstance(action, Close):
            if (exchange := self._exchanges.pop(action.candidate, None)) is not None:
                exchange.close()
        elif isinstance(action, Refresh):
            events.append(Refreshed(self._refreshed()))
        elif isinstance(action, Ask):
            candidate = action.candidate
            exchange = PageRequest(self._shared.connections, candidate, self._shared.headers)
            self._exchanges[candidate] = exchange
            try:
                exchange.start(self._wanted)
            except OSError as err:
                self._lost(candidate, err, events)

    def _refreshed(self) -> list[Candidate]:
        try:
            self._shared.refresh()
        except CacheFSError as err:
            log.debug("cannot fetch the newest view: %s", err)
        return self._shared.candidates(self._origin, self._wanted.pages[0], self._purpose)

    def _lost(self, candidate: Candidate, error: BaseException, events: list[Event]) -> None:
        log.debug("%s: %s", candidate.url, error)
        exchange = self._exchanges.pop(candidate, None)
        if exchange is not None:
            exchange.close()
        events.append(Failed(candidate))

    def _wait(self) -> list[Event]:
        """Waits for a reply, up to `SourceSelection.wake_at_s`. Raises Interrupted after
        `abort`."""
        if self._is_aborted:
            raise Interrupted("the read was abandoned")
        poll = select.poll()
        waiting = {exchange.fileno(): exchange for exchange in self._exchanges.values()}
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        left_s = max(0.0, self._search.wake_at_s - self._shared.clock())
        ready = poll.poll(1000 * min(SLICE_S, left_s) + 1)
        events: list[Event] = []
        for fd, _ in ready:
            self._receive(waiting[fd], events)
        return events or [Tick()]

    def _receive(self, exchange: PageRequest, events: list[Event]) -> None:
        candidate = exchange.candidate
        try:
            answer = exchange.answer()
        except OSError as err:
            return self._lost(candidate, err, events)
        if answer is not None:
            self._refusal = exchange.refusal or self._refusal
            events.append(Answered(candidate, answer, exchange.at_once))
            if exchange.is_over:
                self._exchanges.pop(candidate).close()

    def abort(self) -> None:
        """Makes `find` raise Interrupted within `SLICE_S`. Thread-safe."""
        self._is_aborted = True

    def close(self) -> None:
        """Ends the requests in flight. Idempotent."""
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()
