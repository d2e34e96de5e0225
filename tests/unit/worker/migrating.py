"""Workers that migrate, without a network: what one asks of another is answered after a turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from cachefs.core.cluster import Offer
from cachefs.core.errors import CacheFSError, NoSpace, Unreachable
from cachefs.core.model import PAGE_BYTES, ContentId, NamespaceId
from cachefs.core.placement import Member, Placement, View
from worker.migration.decisions import MigrationDecisions
from worker.migration.events import (
    BLOCK_PAGES,
    Action,
    AskHave,
    Bring,
    Event,
    Filled,
    HaveReplied,
    Holding,
    LookAt,
    OfferReceived,
    OfferReplied,
    OfferReply,
    PagesCompared,
    PagesFetched,
    RefreshView,
    Scan,
    Scanned,
    SendOffer,
    TimePassed,
    ViewReceived,
)

NAMESPACE = NamespaceId(b"n" * 16)
TURN_S = 0.05


def key_of(ino: int) -> bytes:
    return ContentId(NAMESPACE, ino, 0, ino * 7).key


def member(id: str, weight: float = 1.0) -> Member:
    return Member(id, f"http://{id}:1", weight)


class Node:
    """`bits` of each content that is here. `room_bytes`: what it still takes."""

    def __init__(self, id: str, fleet: Fleet, *, replicas: int = 1, **how: Any) -> None:
        self.id = id
        self.fleet = fleet
        self.migration = MigrationDecisions(id, **how)
        self.replicas = replicas
        self.bits: dict[bytes, int] = {}
        self.room_bytes = float("inf")
        self.is_mute = False  # answers nothing
        self.fails_to_bring: CacheFSError | None = None
        self.brought_bytes = 0
        self.calls = 0

    def put(self, ino: int, size_bytes: int, pages: int | None = None) -> None:
        self.fleet.sizes[key_of(ino)] = size_bytes
        whole = (1 << -(-size_bytes // PAGE_BYTES)) - 1
        self.bits[key_of(ino)] = whole if pages is None else pages

    def holding(self, key: bytes) -> Holding:
        return Holding(key, self.fleet.sizes[key], self.bits[key], self.replicas)

    def fill(self, ino: int, size_bytes: int, pages: int | None = None) -> None:
        """As from the origin."""
        self.put(ino, size_bytes, pages)
        self.act(Filled((self.holding(key_of(ino)),)))

    def has(self, ino: int, block: int) -> int:
        return self.bits.get(key_of(ino), 0) >> block * BLOCK_PAGES & ((1 << BLOCK_PAGES) - 1)

    def tell(self, event: Event) -> list[Action]:
        actions = self.migration.handle(event, self.fleet.now_s)
        self.migration.check_invariants()
        return actions

    def act(self, event: Event) -> None:
        for action in self.tell(event):
            self.fleet.later(lambda action=action: self.do(action))

    def do(self, action: Action) -> None:
        self.calls += 1
        match action:
            case Scan(epoch, after, limit):
                keys = sorted(key for key in self.bits if key > after)
                found = tuple(self.holding(key) for key in keys[:limit])
                rest = keys[limit - 1] if len(keys) > limit else b""
                self.act(Scanned(epoch, found, rest))
            case AskHave(epoch, peer, contents):
                other = self.fleet.peer(peer.id)
                pages = {k: other.bits.get(k, 0) for k in contents} if other else None
                self.act(HaveReplied(epoch, peer.id, pages))
            case SendOffer(epoch, peer):
                self.act(OfferReplied(epoch, peer.id, self._offer(action)))
            case LookAt(epoch, giver, _, contents):
                other = self.fleet.peer(giver)
                pages = None
                if other is not None:
                    pages = {k: other.bits.get(k, 0) & ~self.bits.get(k, 0) for k in contents}
                self.act(PagesCompared(epoch, giver, pages))
            case Bring():
                self.act(self._bring(action))
            case RefreshView():
                self.act(ViewReceived(self.fleet.view))
            case OfferReply():
                raise AssertionError("an answer to nothing")

    def _offer(self, send: SendOffer) -> CacheFSError | None:
        other = self.fleet.peer(send.peer.id)
        if other is None:
            return Unreachable("mute")
        url = f"http://{self.id}:1"
        offer = Offer(self.id, url, send.epoch, [*send.blocks], [*send.replicas])
        answer, *rest = other.tell(OfferReceived(offer))
        for action in rest:
            other.fleet.later(lambda action=action: other.do(action))
        assert isinstance(answer, OfferReply)
        return answer.failure

    def _bring(self, bring: Bring) -> PagesFetched:
        if self.fails_to_bring is not None:
            return PagesFetched(bring, 0, self.fails_to_bring)
        other = self.fleet.peer(bring.giver)
        if other is None:
            return PagesFetched(bring, 0, Unreachable("mute"))
        mask = ((1 << bring.end) - 1) & ~((1 << bring.first) - 1)
        new = other.bits.get(bring.key, 0) & mask & ~self.bits.get(bring.key, 0)
        size_bytes = min(self.fleet.sizes[bring.key], new.bit_count() * PAGE_BYTES)
        if size_bytes > self.room_bytes:
            return PagesFetched(bring, 0, NoSpace("full"))
        self.room_bytes -= size_bytes
        self.brought_bytes += size_bytes
        self.bits[bring.key] = self.bits.get(bring.key, 0) | new
        return PagesFetched(bring, size_bytes, None)


class Fleet:
    """Nodes, the view that they have, and turns of the clock. `loss`: of answers, 0..1."""

    def __init__(self, *ids: str, seed: int = 0, loss: float = 0.0, **how: Any) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.now_s = 1000.0
        self.how = how
        self.sizes: dict[bytes, int] = {}
        self.view = View(0, (member("gone"),))
        self.nodes: dict[str, Node] = {}
        self._due: list[Callable[[], None]] = []
        for id in ids:
            self.add(id)

    def add(self, id: str) -> Node:
        self.nodes[id] = Node(id, self, **self.how)
        return self.nodes[id]

    def peer(self, id: str) -> Node | None:
        """None where the other does not answer."""
        other = self.nodes.get(id)
        lost = self.loss and self.random.random() < self.loss
        return None if other is None or other.is_mute or lost else other

    def later(self, call: Callable[[], None]) -> None:
        self._due.append(call)

    def members(self, *members: Member) -> View:
        """The next epoch."""
        self.view = View(self.view.epoch + 1, members, self.view.members)
        for node in self.nodes.values():
            node.act(ViewReceived(self.view))
        return self.view

    @property
    def placement(self) -> Placement:
        return Placement(self.view.members)

    def turn(self) -> None:
        self.now_s += TURN_S
        due, self._due = self._due, []
        for call in due:
            call()
        for node in self.nodes.values():
            node.act(TimePassed())

    def run(self, limit_s: float = 60.0) -> float:
        """Until everybody settled; returns how long it took. Fails after `limit_s`."""
        started_s = self.now_s
        while not all(n.migration.settled == self.view.epoch for n in self.nodes.values()):
            assert self.now_s - started_s < limit_s, self.unsettled()
            self.turn()
        return self.now_s - started_s

    def unsettled(self) -> dict[str, dict[str, int]]:
        return {id: node.migration.status() for id, node in self.nodes.items()}
