"""The blocks that this worker receives from others by migration, at a bounded rate. Pure.

The receiver accepts offers of blocks that it owns, from senders in the same epoch. It serves the
senders in turn, so that a large sender does not delay the others. For a few blocks at a time it
requests the sender's page bitmaps, and fetches the pages missing here in pieces. A failed piece is
dropped: the sender detects the missing pages and offers them again. If the cache is full, the queue
is dropped, and offers are refused for `FULL_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from cachefs.core.cluster import Offer
from cachefs.core.errors import CacheFSError, NoSpace, Stale, Unavailable
from cachefs.core.placement import Placement, View
from cachefs.core.policies import MOST_REPLICAS
from worker.migration import events as e
from worker.runtime.rate import TokenBucket

QUEUE_BLOCKS: Final = 16_384  # of all senders
LOOK_BLOCKS: Final = 64  # per request for page bitmaps
PIECE_PAGES: Final = 16  # per `Bring`
BRINGS: Final = 24  # in flight; many, since each small file takes one
BRINGING_PAGES: Final = 128  # in flight, plus one piece
FULL_S: Final = 30.0
MOST_FAILURES: Final = 8  # in a row; then the sender's offers are dropped


@dataclass(slots=True)
class _Sender:
    url: str
    queue: dict[e.Block, None] = field(default_factory=dict)  # ordered, each block once
    looking: tuple[e.Block, ...] = ()
    pieces: deque[e.Bring] = field(default_factory=deque)
    failures: int = 0  # in a row

    @property
    def is_empty(self) -> bool:
        return not (self.queue or self.looking or self.pieces)


class MigrationReceiver:
    """The queues of all senders, and the pieces in flight; see the module."""

    def __init__(self, worker: str, bucket: TokenBucket) -> None:
        self.taken_bytes = 0
        self.failed = 0  # pieces
        self._worker = worker
        self._bucket = bucket
        self._epoch = -1
        self._placement = Placement(())
        self._senders: dict[str, _Sender] = {}  # in the order of their turns
        self._bringing: set[e.Bring] = set()
        self._full_until_s = float("-inf")

    @property
    def blocks(self) -> int:
        """The number of accepted blocks that are not being fetched yet."""
        return sum(len(sender.queue) + len(sender.looking) for sender in self._senders.values())

    @property
    def is_idle(self) -> bool:
        return not self._bringing and all(sender.is_empty for sender in self._senders.values())

    # ---- events ----

    def on_view(self, view: View) -> list[e.Action]:
        """Drops the offers of an earlier epoch; their senders offer them again if needed."""
        self._placement = Placement(view.members)
        if view.epoch != self._epoch:
            self._epoch = view.epoch
            self._senders = {}
        return []

    def on_offer(self, offer: Offer, now_s: float) -> list[e.Action]:
        """Accepts or refuses an offer; the first action is the `OfferReply`."""
        refusal = self._refusal(offer, now_s)
        if refusal is not None:
            later = offer.epoch > self._epoch
            return [e.OfferReply(refusal), *([e.RefreshView()] if later else [])]
        sender = self._senders.setdefault(offer.worker, _Sender(offer.url))
        sender.url = offer.url
        at_work = {*sender.looking, *map(_block_of, sender.pieces), *map(_block_of, self._bringing)}
        counts = offer.replicas or [1] * len(offer.blocks)
        for block, replicas in zip(offer.blocks, counts, strict=False):
            if block not in at_work and self._owns(block, replicas):
                sender.queue[block] = None
        return [e.OfferReply(None), *self.advance(now_s)]

    def on_looked(self, event: e.PagesCompared, now_s: float) -> list[e.Action]:
        sender = self._senders.get(event.giver)
        if sender is None or not sender.looking or event.epoch != self._epoch:
            return []
        blocks, sender.looking = sender.looking, ()
        if event.pages is None:
            sender.queue.clear()
            self.failed += 1
        else:
            for key, block in blocks:
                bits = e.pages_of(event.pages.get(key, 0), block)
                sender.pieces.extend(_pieces(key, block, bits, event.giver, sender.url))
        return self.advance(now_s)

    def on_brought(self, event: e.PagesFetched, now_s: float) -> list[e.Action]:
        if event.bring not in self._bringing:
            return []
        self._bringing.discard(event.bring)
        self._bucket.charge(event.size_bytes, now_s)
        self.taken_bytes += event.size_bytes
        if event.failure is not None:
            self._failed(event.bring, event.failure, now_s)
        elif (sender := self._senders.get(event.bring.giver)) is not None:
            sender.failures = 0
        return self.advance(now_s)

    def advance(self, now_s: float) -> list[e.Action]:
        """Returns the due actions. Also called periodically."""
        actions: list[e.Action] = []
        while self._may_bring_more and self._bucket.is_open(now_s):
            piece = self._next_piece()
            if piece is None:
                break
            self._bringing.add(piece)
            actions.append(piece)
        for id, sender in self._senders.items():
            if sender.queue and not sender.looking and len(sender.pieces) < BRINGS:
                sender.looking = tuple(islice(sender.queue, LOOK_BLOCKS))
                for block in sender.looking:
                    del sender.queue[block]
                contents = tuple(dict.fromkeys(key for key, _ in sender.looking))
                actions.append(e.LookAt(self._epoch, id, sender.url, contents))
        self._forget_empty()
        return actions

    # ---- decisions ----

    def _refusal(self, offer: Offer, now_s: float) -> CacheFSError | None:
        if offer.epoch > self._epoch:
            return Unavailable(f"epoch {offer.epoch} is not known here yet, only {self._epoch}")
        if offer.epoch < self._epoch:
            return Stale(f"the epoch is {self._epoch}, not {offer.epoch}")
        if now_s < self._full_until_s:
            return NoSpace("the cache was full recently and accepts no offers yet")
        if self.blocks + len(offer.blocks) > QUEUE_BLOCKS:
            return Unavailable("too many offered blocks are queued")
        return None

    def _owns(self, block: e.Block, replicas: int) -> bool:
        replicas = min(max(1, replicas), MOST_REPLICAS)
        owners = self._placement.owners(e.ino_of(block[0]), block[1], replicas)
        return any(one.id == self._worker for one in owners)

    @property
    def _may_bring_more(self) -> bool:
        pages = sum(piece.end - piece.first for piece in self._bringing)
        return len(self._bringing) < BRINGS and pages < BRINGING_PAGES

    def _next_piece(self) -> e.Bring | None:
        """Returns a piece of the next sender in turn, which becomes the last."""
        for id, sender in self._senders.items():
            if sender.pieces:
                self._senders[id] = self._senders.pop(id)
                return sender.pieces.popleft()
        return None

    def _failed(self, bring: e.Bring, failure: CacheFSError, now_s: float) -> None:
        self.failed += 1
        if isinstance(failure, NoSpace):
            self._full_until_s = now_s + FULL_S
            self._senders = {}
            return
        sender = self._senders.get(bring.giver)
        if sender is None:
            return
        sender.failures += 1
        if sender.failures >= MOST_FAILURES:
            del self._senders[bring.giver]
        elif not failure.retryable:  # the rest of that file would fail too
            sender.pieces = deque(piece for piece in sender.pieces if piece.key != bring.key)

    def _forget_empty(self) -> None:
        for id in [id for id, sender in self._senders.items() if sender.is_empty]:
            del self._senders[id]

    def check_invariants(self) -> None:
        assert len(self._bringing) <= BRINGS
        assert self.blocks <= QUEUE_BLOCKS
        for sender in self._senders.values():
            assert not sender.queue.keys() & {*sender.looking}
            assert len(sender.looking) <= LOOK_BLOCKS


def _block_of(bring: e.Bring) -> e.Block:
    return bring.key, bring.first // e.BLOCK_PAGES


def _pieces(key: bytes, block: int, bits: int, sender: str, url: str) -> Iterator[e.Bring]:
    """Yields the runs of pages in `bits` (of that block), cut into pieces."""
    page = 0
    while bits >> page:
        rest = bits >> page
        page += (rest & -rest).bit_length() - 1
        absent = ~(bits >> page)
        end = min(page + (absent & -absent).bit_length() - 1, page + PIECE_PAGES)
        first = block * e.BLOCK_PAGES
        yield e.Bring(key, first + page, first + end, sender, url)
        page = end
