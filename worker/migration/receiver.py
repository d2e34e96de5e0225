"""What this worker takes over from others after a change of members, and how fast. Pure.

Offers are taken from a worker that sees the same epoch, of blocks that are ours in it. The givers
take turns, so that one with much to give keeps nobody waiting. Of a few blocks at a time the giver
is asked which pages it has, and what is missing here is brought in pieces, at a bounded rate. What
fails is forgotten: the giver sees what is missing and offers it again. No room: what is queued is
dropped, and offers are refused for a while.
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
from worker.migration.events import (
    BLOCK_PAGES,
    Action,
    Answer,
    Block,
    Bring,
    Brought,
    LookAt,
    LookedAt,
    RefreshView,
    ino_of,
    pages_of,
)
from worker.runtime.rate import TokenBucket

QUEUE_BLOCKS: Final = 16_384  # of all givers
LOOK_BLOCKS: Final = 64  # about which a giver is asked at a time
PIECE_PAGES: Final = 16  # brought by one call
BRINGS: Final = 24  # at a time: small files are brought one by one, and wait for each other
BRINGING_PAGES: Final = 128  # by them all, and one piece more
FULL_S: Final = 30.0
MOST_FAILURES: Final = 8  # in a row; then what the giver offered is forgotten


@dataclass(slots=True)
class _Giver:
    url: str
    queue: dict[Block, None] = field(default_factory=dict)  # ordered, each block once
    looking: tuple[Block, ...] = ()
    pieces: deque[Bring] = field(default_factory=deque)
    failures: int = 0  # in a row

    @property
    def is_empty(self) -> bool:
        return not (self.queue or self.looking or self.pieces)


class Taker:
    """See the module."""

    def __init__(self, worker: str, bucket: TokenBucket) -> None:
        self.taken_bytes = 0
        self.failed = 0  # pieces
        self._worker = worker
        self._bucket = bucket
        self._epoch = -1
        self._placement = Placement(())
        self._givers: dict[str, _Giver] = {}  # the one whose turn it is first
        self._bringing: set[Bring] = set()
        self._full_until_s = float("-inf")

    @property
    def blocks(self) -> int:
        """That wait to be taken."""
        return sum(len(giver.queue) + len(giver.looking) for giver in self._givers.values())

    @property
    def is_idle(self) -> bool:
        return not self._bringing and all(giver.is_empty for giver in self._givers.values())

    # ---- events ----

    def on_view(self, view: View) -> list[Action]:
        """What was offered in an earlier epoch is offered again by who still has to."""
        self._placement = Placement(view.members)
        if view.epoch != self._epoch:
            self._epoch = view.epoch
            self._givers = {}
        return []

    def on_offer(self, offer: Offer, now_s: float) -> list[Action]:
        """The first action is the `Answer`."""
        refusal = self._refusal(offer, now_s)
        if refusal is not None:
            later = offer.epoch > self._epoch
            return [Answer(refusal), *([RefreshView()] if later else [])]
        giver = self._givers.setdefault(offer.worker, _Giver(offer.url))
        giver.url = offer.url
        at_work = {*giver.looking, *map(_block_of, giver.pieces), *map(_block_of, self._bringing)}
        counts = offer.replicas or [1] * len(offer.blocks)
        for block, replicas in zip(offer.blocks, counts, strict=False):
            if block not in at_work and self._owns(block, replicas):
                giver.queue[block] = None
        return [Answer(None), *self.advance(now_s)]

    def on_looked(self, event: LookedAt, now_s: float) -> list[Action]:
        giver = self._givers.get(event.giver)
        if giver is None or not giver.looking or event.epoch != self._epoch:
            return []
        blocks, giver.looking = giver.looking, ()
        if event.pages is None:
            giver.queue.clear()
            self.failed += 1
        else:
            for key, block in blocks:
                bits = pages_of(event.pages.get(key, 0), block)
                giver.pieces.extend(_pieces(key, block, bits, event.giver, giver.url))
        return self.advance(now_s)

    def on_brought(self, event: Brought, now_s: float) -> list[Action]:
        if event.bring not in self._bringing:
            return []
        self._bringing.discard(event.bring)
        self._bucket.charge(event.size_bytes, now_s)
        self.taken_bytes += event.size_bytes
        if event.failure is not None:
            self._failed(event.bring, event.failure, now_s)
        elif (giver := self._givers.get(event.bring.giver)) is not None:
            giver.failures = 0
        return self.advance(now_s)

    def advance(self, now_s: float) -> list[Action]:
        """What is due. To be called now and then, too."""
        actions: list[Action] = []
        while self._may_bring_more and self._bucket.is_open(now_s):
            piece = self._next_piece()
            if piece is None:
                break
            self._bringing.add(piece)
            actions.append(piece)
        for id, giver in self._givers.items():
            if giver.queue and not giver.looking and len(giver.pieces) < BRINGS:
                giver.looking = tuple(islice(giver.queue, LOOK_BLOCKS))
                for block in giver.looking:
                    del giver.queue[block]
                contents = tuple(dict.fromkeys(key for key, _ in giver.looking))
                actions.append(LookAt(self._epoch, id, giver.url, contents))
        self._forget_empty()
        return actions

    # ---- decisions ----

    def _refusal(self, offer: Offer, now_s: float) -> CacheFSError | None:
        if offer.epoch > self._epoch:
            return Unavailable(f"epoch {offer.epoch} is not known here yet, only {self._epoch}")
        if offer.epoch < self._epoch:
            return Stale(f"the epoch is {self._epoch}, not {offer.epoch}")
        if now_s < self._full_until_s:
            return NoSpace("the cache takes nothing over for now")
        if self.blocks + len(offer.blocks) > QUEUE_BLOCKS:
            return Unavailable("too many blocks wait to be taken over")
        return None

    def _owns(self, block: Block, replicas: int) -> bool:
        replicas = min(max(1, replicas), MOST_REPLICAS)
        owners = self._placement.owners(ino_of(block[0]), block[1], replicas)
        return any(one.id == self._worker for one in owners)

    @property
    def _may_bring_more(self) -> bool:
        pages = sum(piece.end - piece.first for piece in self._bringing)
        return len(self._bringing) < BRINGS and pages < BRINGING_PAGES

    def _next_piece(self) -> Bring | None:
        """Of the giver whose turn it is, who is then the last."""
        for id, giver in self._givers.items():
            if giver.pieces:
                self._givers[id] = self._givers.pop(id)
                return giver.pieces.popleft()
        return None

    def _failed(self, bring: Bring, failure: CacheFSError, now_s: float) -> None:
        self.failed += 1
        if isinstance(failure, NoSpace):
            self._full_until_s = now_s + FULL_S
            self._givers = {}
            return
        giver = self._givers.get(bring.giver)
        if giver is None:
            return
        giver.failures += 1
        if giver.failures >= MOST_FAILURES:
            del self._givers[bring.giver]
        elif not failure.retryable:  # nor will the rest of that file come
            giver.pieces = deque(piece for piece in giver.pieces if piece.key != bring.key)

    def _forget_empty(self) -> None:
        for id in [id for id, giver in self._givers.items() if giver.is_empty]:
            del self._givers[id]

    def check_invariants(self) -> None:
        assert len(self._bringing) <= BRINGS
        assert self.blocks <= QUEUE_BLOCKS
        for giver in self._givers.values():
            assert not giver.queue.keys() & {*giver.looking}
            assert len(giver.looking) <= LOOK_BLOCKS


def _block_of(bring: Bring) -> Block:
    return bring.key, bring.first // BLOCK_PAGES


def _pieces(key: bytes, block: int, bits: int, giver: str, url: str) -> Iterator[Bring]:
    """The runs of pages in `bits` (of that block), cut into pieces."""
    page = 0
    while bits >> page:
        rest = bits >> page
        page += (rest & -rest).bit_length() - 1
        absent = ~(bits >> page)
        end = min(page + (absent & -absent).bit_length() - 1, page + PIECE_PAGES)
        first = block * BLOCK_PAGES
        yield Bring(key, first + page, first + end, giver, url)
        page = end
