"""Which blocks this worker hands over after a change of members or a fill, to whom, and when that
is done. Pure.

After each new view all that is cached here is looked through, a batch at a time. A block whose
owners are not those that it had is offered to them, by who has it and does not own it (and, where
several own it, by the first of those who did before). What comes to the first of several owners
is offered to the others as it comes; and so is all that is here, when more own it than before.

First an owner is asked what it has:
what it lacks is offered, in batches and at a bounded rate, and it is asked again until it has it
all. So nobody needs to remember anything: a taker that starts again, a lost offer and a lost
answer are all the same. Who makes no progress for long, or has no room, is given up: its blocks
stay here as copies and are fetched when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from cachefs.core.cluster import BATCH_LIMIT
from cachefs.core.errors import CacheFSError, NoSpace
from cachefs.core.model import PAGE_BYTES
from cachefs.core.placement import Member, Placement, View
from worker.migration.events import (
    BLOCK_PAGES,
    Action,
    AskHave,
    Block,
    Filled,
    HaveCame,
    OfferAnswered,
    Outdated,
    Scan,
    Scanned,
    SendOffer,
    ino_of,
    pages_of,
)
from worker.runtime.rate import TokenBucket
from worker.store.holdings import Holding

SCAN_CONTENTS: Final = 256  # of one look into the index
WINDOW_BLOCKS: Final = 4096  # being handed over at a time; the rest waits in the index
SCAN_AFTER_S: Final = 1.0  # of a view: fills that began before it are in the index by then
SCAN_PAUSE_S: Final = 5.0  # after an index that could not be read
CONFIRM_S: Final = 1.0  # between two questions for the same block
REOFFER_S: Final = 4.0  # an offer of which nothing came is made again
GIVE_UP_S: Final = 120.0  # without progress
PATIENT_OFFERS: Final = 45  # of one block: to be taken again is progress, others may be first
FULL_S: Final = 30.0  # a taker without room is offered nothing for so long
MOST_BACKOFF_S: Final = 10.0

Heirs = Callable[[int, int, int], list[Member]]  # ino, block, replicas


@dataclass(slots=True)
class _Move:
    """One block on its way to one taker. `bits` are the pages here, `missing` those of them that
    the taker lacked when it was asked last."""

    bits: int
    size_bytes: int  # of the content
    replicas: int
    waited: bool  # for the epoch to be settled
    missing: int = 0
    asked_s: float = 0.0
    offered_s: float = 0.0
    offers: int = 0


@dataclass(slots=True)
class _Taker:
    """`fresh`: it was not asked yet; `wanted`: it lacks something; `given`: it was offered, and
    asked again later. One call to it at a time: `calling` are the blocks that it is about."""

    member: Member
    progress_s: float
    fresh: dict[Block, _Move] = field(default_factory=dict)
    wanted: dict[Block, _Move] = field(default_factory=dict)
    given: dict[Block, _Move] = field(default_factory=dict)
    calling: tuple[Block, ...] | None = None
    failures: int = 0
    next_call_s: float = 0.0
    full_until_s: float = float("-inf")
    given_up: bool = False
    again_s: float = 0.0  # given up: when it may be tried again with what has come since

    def blocks(self) -> list[Block]:
        return [*self.fresh, *self.wanted, *self.given]

    def move(self, block: Block) -> _Move | None:
        return self.fresh.get(block) or self.wanted.get(block) or self.given.get(block)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.wanted) + len(self.given)

    def clear(self) -> list[_Move]:
        moves = [*self.fresh.values(), *self.wanted.values(), *self.given.values()]
        self.fresh.clear()
        self.wanted.clear()
        self.given.clear()
        return moves


class Giver:
    """See the module. `settled` is the last epoch in which everything was handed over."""

    def __init__(self, worker: str, bucket: TokenBucket) -> None:
        self.settled = 0
        self.handed = 0  # blocks that reached their owners
        self.given_up = 0  # blocks that did not
        self.blocks = 0  # on their way now
        self._worker = worker
        self._bucket = bucket
        self._epoch = -1
        self._members: dict[str, float] = {}
        self._now = Placement(())
        self._base: Placement | None = None  # of the view that was settled last
        self._takers: dict[str, _Taker] = {}
        self._after: bytes | None = None  # where the scan goes on; None: it is done
        self._scanning = False
        self._next_scan_s = 0.0
        self._waited = 0  # of `blocks`, those that the epoch waits for
        self._for_view = False  # is the scan for a change of members?
        self._for_replicas = False  # is it for further owners of what has several?
        self._may_lack = False  # these may lack something of which no move is under way

    @property
    def is_scanning(self) -> bool:
        return self._after is not None

    @property
    def is_busy(self) -> bool:
        return self.is_scanning or self.blocks > 0 or self._may_lack

    # ---- events ----

    def on_view(self, view: View, now_s: float) -> list[Action]:
        owning = {one.id: one.weight for one in view.members if one.weight > 0}
        if view.epoch == self._epoch and owning == self._members:
            return self._new_addresses(view)
        if view.epoch <= self._epoch:  # of a master that lost what it knew
            self.settled = 0
        unchanged = self.settled == self._epoch and owning == self._members
        if self._epoch < 0 and not view.before:  # back before anything changed
            unchanged = True
        # What came here in an epoch that was not settled may be known to nobody else.
        self._base = self._now if self.settled == self._epoch else None
        self._epoch, self._members = view.epoch, owning
        self._now = Placement(view.members)
        self._may_lack |= self._for_replicas or self.blocks > self._waited
        self._takers, self.blocks, self._waited = {}, 0, 0
        self._for_view = bool(owning) and not unchanged
        self._begin_scan(now_s)
        return self.advance(now_s)

    def _begin_scan(self, now_s: float) -> None:
        """Looks through everything, if there is a reason."""
        self._for_replicas = self._may_lack and bool(self._members)
        self._may_lack &= not self._for_replicas
        self._after = b"" if self._for_view or self._for_replicas else None
        self._scanning = False
        self._next_scan_s = now_s + SCAN_AFTER_S

    def _new_addresses(self, view: View) -> list[Action]:
        """The same members, some of them perhaps elsewhere."""
        self._now = Placement(view.members)
        for member in view.members:
            taker = self._takers.get(member.id)
            if taker is not None and taker.member != member:
                taker.member = member
                taker.failures, taker.next_call_s = 0, 0.0
        return []

    def on_scanned(self, event: Scanned, now_s: float) -> list[Action]:
        if event.epoch != self._epoch or not self._scanning:
            return []
        self._scanning = False
        if event.failed:
            self._next_scan_s = now_s + SCAN_PAUSE_S
            return []
        for holding in event.holdings:
            self._look_at(holding, now_s, self._heirs)
        self._after = event.after or None
        return self.advance(now_s)

    def on_filled(self, event: Filled, now_s: float) -> list[Action]:
        for holding in event.holdings:
            if self.blocks >= WINDOW_BLOCKS:
                self._may_lack = True
            else:
                self._look_at(holding, now_s, self._others)
        return self.advance(now_s)

    def on_owners_changed(self, now_s: float) -> list[Action]:
        self._may_lack = True
        return self.advance(now_s)

    def on_have(self, event: HaveCame, now_s: float) -> list[Action]:
        taker = self._answered(event.epoch, event.peer)
        if taker is None:
            return []
        blocks, taker.calling = taker.calling or (), None
        if event.pages is None:
            self._back_off(taker, now_s)
        else:
            taker.failures = 0
            for block in blocks:
                self._compare(taker, block, event.pages.get(block[0], 0), now_s)
        return self._call(taker, now_s) + self._scan(now_s)

    def on_offer_answered(self, event: OfferAnswered, now_s: float) -> list[Action]:
        taker = self._answered(event.epoch, event.peer)
        if taker is None:
            return []
        blocks, taker.calling = taker.calling or (), None
        if event.failure is None:
            taker.failures = 0
            self._accepted(taker, blocks, now_s)
        else:
            self._refused(taker, blocks, event.failure, now_s)
        return self._call(taker, now_s) + self._scan(now_s)

    def on_outdated(self, event: Outdated) -> list[Action]:
        """Part of an offer under way, of which the answer follows."""
        taker = self._answered(event.epoch, event.peer)
        if taker is not None:
            for block in [block for block in taker.calling or () if block[0] in event.keys]:
                if (move := taker.wanted.pop(block, None)) is not None:
                    self._ended(move)
        return []

    def advance(self, now_s: float) -> list[Action]:
        """What is due. To be called now and then, too."""
        actions: list[Action] = []
        for taker in self._takers.values():
            actions += self._call(taker, now_s)
        return actions + self._scan(now_s)

    def _scan(self, now_s: float) -> list[Action]:
        """Looks on while there is room in the window, or sees that all is done."""
        if self._after is None:
            self._for_view = self._for_replicas = False
            if not self._waited:
                self.settled = max(self.settled, self._epoch)
            if not self._may_lack or self.blocks > WINDOW_BLOCKS // 2 or not self._members:
                return []
            self._begin_scan(now_s)
        assert self._after is not None
        if not self._for_view and not self._waited:
            self.settled = max(self.settled, self._epoch)
        if self._scanning or now_s < self._next_scan_s or self.blocks >= WINDOW_BLOCKS:
            return []
        self._scanning = True
        return [Scan(self._epoch, self._after, SCAN_CONTENTS)]

    # ---- what is to be handed over ----

    def _look_at(self, holding: Holding, now_s: float, heirs: Heirs) -> None:
        ino, bits, block = ino_of(holding.key), holding.bits, 0
        waited = heirs == self._heirs and self._for_view
        while bits:
            here = pages_of(bits, 0)
            for heir in heirs(ino, block, holding.replicas) if here else ():
                move = _Move(here, holding.size_bytes, holding.replicas, waited)
                self._begin(heir, (holding.key, block), move, now_s)
            bits >>= BLOCK_PAGES
            block += 1

    def _others(self, ino: int, block: int, replicas: int) -> list[Member]:
        """Whom the first owner helps to their copies."""
        first, *others = self._now.owners(ino, block, replicas) or (None,)
        return others if first is not None and first.id == self._worker else []

    def _heirs(self, ino: int, block: int, replicas: int) -> list[Member]:
        """To whom this worker is to offer the block."""
        owners = self._now.owners(ino, block, replicas)
        before: set[str] = set()
        if self._base is not None:
            before = {one.id for one in self._base.owners(ino, block, replicas)}
        if before == {one.id for one in owners} or not self._for_view:
            return self._others(ino, block, replicas) if self._for_replicas else []
        if any(one.id == self._worker for one in owners):
            first = next((one for one in owners if one.id in before), owners[0])
            if first.id != self._worker:
                return []
        return [one for one in owners if one.id != self._worker]

    def _begin(self, heir: Member, block: Block, move: _Move, now_s: float) -> None:
        taker = self._takers.get(heir.id)
        if taker is None:
            taker = self._takers[heir.id] = _Taker(heir, now_s)
        if taker.given_up and not move.waited and now_s >= taker.again_s:
            taker.given_up = False
        if taker.given_up or now_s < taker.full_until_s:
            self.given_up += 1
            return
        if not len(taker):
            taker.progress_s = now_s
        known = taker.move(block)
        if known is not None:
            known.bits |= move.bits
            self._waited += move.waited and not known.waited
            known.waited |= move.waited
            return
        taker.fresh[block] = move
        self.blocks += 1
        self._waited += move.waited

    def _ended(self, move: _Move) -> None:
        self.blocks -= 1
        self._waited -= move.waited

    # ---- calls ----

    def _call(self, taker: _Taker, now_s: float) -> list[Action]:
        """The next call to a taker, if one is due."""
        self._give_up_if_stuck(taker, now_s)
        if taker.calling is not None or now_s < taker.next_call_s:
            return []
        return self._offer(taker, now_s) or self._ask(taker, now_s)

    def _offer(self, taker: _Taker, now_s: float) -> list[Action]:
        if not taker.wanted:
            return []
        blocks: list[Block] = []
        for block, move in taker.wanted.items():
            if len(blocks) == BATCH_LIMIT or not self._bucket.is_open(now_s):
                break
            blocks.append(block)
            if not move.offers:
                self._bucket.charge(_size_bytes(block, move), now_s)
        if not blocks:
            if not taker.given:
                taker.progress_s = now_s  # it waits for us, not we for it
            return []
        taker.calling = tuple(blocks)
        counts = tuple(taker.wanted[block].replicas for block in blocks)
        return [SendOffer(self._epoch, taker.member, taker.calling, counts)]

    def _ask(self, taker: _Taker, now_s: float) -> list[Action]:
        blocks = [*islice(taker.fresh, BATCH_LIMIT)]
        for block, move in islice(taker.given.items(), BATCH_LIMIT - len(blocks)):
            if now_s - move.asked_s < CONFIRM_S:
                break  # the oldest question is first
            blocks.append(block)
        if not blocks:
            return []
        taker.calling = tuple(blocks)
        contents = tuple(dict.fromkeys(key for key, _ in blocks))
        return [AskHave(self._epoch, taker.member, contents)]

    def _answered(self, epoch: int, peer: str) -> _Taker | None:
        taker = self._takers.get(peer) if epoch == self._epoch else None
        return taker if taker is not None and taker.calling is not None else None

    def _compare(self, taker: _Taker, block: Block, bits: int, now_s: float) -> None:
        move = taker.fresh.pop(block, None)
        known = move is None
        if move is None:
            move = taker.given.pop(block, None)
        if move is None:
            return
        missing = move.bits & ~pages_of(bits, block[1])
        if not missing:
            self.handed += 1
            self._ended(move)
            taker.progress_s = now_s
            return
        if known and missing != move.missing:
            taker.progress_s = move.offered_s = now_s
            move.offers = 1
        move.missing, move.asked_s = missing, now_s
        stuck = not known or now_s - move.offered_s >= REOFFER_S
        (taker.wanted if stuck else taker.given)[block] = move

    def _accepted(self, taker: _Taker, blocks: Iterable[Block], now_s: float) -> None:
        for block in blocks:
            move = taker.wanted.pop(block, None)
            if move is None:
                continue
            if move.offers < PATIENT_OFFERS:
                taker.progress_s = now_s
            move.offers += 1
            move.offered_s = move.asked_s = now_s
            taker.given[block] = move

    def _refused(
        self, taker: _Taker, blocks: Iterable[Block], failure: CacheFSError, now_s: float
    ) -> None:
        if isinstance(failure, NoSpace):
            taker.full_until_s = now_s + FULL_S
            self._drop(taker)
            return
        for block in blocks:
            move = taker.wanted.get(block)
            if move is not None and not move.offers:
                self._bucket.charge(-_size_bytes(block, move), now_s)
        self._back_off(taker, now_s)

    def _back_off(self, taker: _Taker, now_s: float) -> None:
        taker.failures += 1
        taker.next_call_s = now_s + min(MOST_BACKOFF_S, 0.25 * 2 ** min(taker.failures, 10))

    def _give_up_if_stuck(self, taker: _Taker, now_s: float) -> None:
        if len(taker) and now_s - taker.progress_s >= GIVE_UP_S:
            taker.given_up = True
            taker.again_s = now_s + GIVE_UP_S
            taker.calling = None
            self._drop(taker)

    def _drop(self, taker: _Taker) -> None:
        for move in taker.clear():
            self.given_up += 1
            self._ended(move)

    def check_invariants(self) -> None:
        assert self.blocks == sum(len(taker) for taker in self._takers.values())
        for id, taker in self._takers.items():
            assert id != self._worker, "nothing is handed to ourselves"
            queues = (taker.fresh, taker.wanted, taker.given)
            assert len(set().union(*queues)) == len(taker), "a block is in one state"
            assert not (taker.given_up and len(taker))
            assert all(move.missing for move in (*taker.wanted.values(), *taker.given.values()))
        assert self.settled <= max(0, self._epoch)
        moves = [taker.move(block) for taker in self._takers.values() for block in taker.blocks()]
        assert self._waited == sum(move.waited for move in moves if move is not None)
        if self.settled == self._epoch:
            assert not self._waited
            assert self._after is None or not self._for_view


def _size_bytes(block: Block, move: _Move) -> int:
    """Bytes of the pages that the taker lacks."""
    size_bytes = move.missing.bit_count() * PAGE_BYTES
    last = (move.size_bytes - 1) // PAGE_BYTES - block[1] * BLOCK_PAGES
    if 0 <= last < BLOCK_PAGES and move.missing >> last & 1:
        size_bytes -= -move.size_bytes % PAGE_BYTES
    return size_bytes
