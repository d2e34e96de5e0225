"""The blocks that this worker sends to other owners after a membership change or a fill. Pure.

After each new view the sender scans all cached contents, a batch at a time. A block whose owners
have changed is offered to its owners by each worker that has it and does not own it. Among the
owners, only the first one that owned it before offers it. The primary owner offers each newly
filled block to the other replicas; when the replica count grows, it offers all cached blocks again.

The sender first requests the receiver's page bitmaps and offers the missing pages, in batches and
at a bounded rate. It repeats this until the receiver has all. So no state is needed to recover from
a restarted receiver, a lost offer or a lost reply. A receiver that makes no progress for
`GIVE_UP_S`, or has no space, is given up: its blocks stay here as copies, and reads fetch them. So
is a disk of this worker that gives no answer to the scan for so long.
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
from worker.migration import events as e
from worker.runtime.rate import TokenBucket
from worker.store.holdings import Holding

SCAN_CONTENTS: Final = 256  # per read of the index
WINDOW_BLOCKS: Final = 4096  # in progress; the scan waits for the window
SCAN_AFTER_S: Final = 1.0  # after a view: fills that began before it are in the index by then
SCAN_PAUSE_S: Final = 5.0  # after a failed read of the index
CONFIRM_S: Final = 1.0  # between two requests for the bitmap of a block
REOFFER_S: Final = 4.0  # an offer without effect is repeated
GIVE_UP_S: Final = 120.0  # without progress
PATIENT_OFFERS: Final = 45  # accepted offers of a block that count as progress: it may be queued
FULL_S: Final = 30.0  # a receiver without space gets no offers
MOST_BACKOFF_S: Final = 10.0
NEVER_S: Final = float("inf")

OwnersOf = Callable[[int, int, int], list[Member]]  # ino, block, replicas


@dataclass(slots=True)
class _Move:
    """The transfer of one block to one receiver. `bits` are the pages here, `missing` those that
    the receiver lacked in its last reply."""

    bits: int
    size_bytes: int  # of the content
    replicas: int
    waited: bool  # the epoch is not settled before the end of this move
    missing: int = 0
    asked_s: float = 0.0
    offered_s: float = 0.0
    offers: int = 0


@dataclass(slots=True)
class _Receiver:
    """The moves to one receiver. `fresh`: its pages are unknown; `wanted`: it lacks pages; `given`:
    it accepted an offer, to be confirmed later. `calling`: the blocks of the call in flight, of
    which there is at most one."""

    member: Member
    progress_s: float
    fresh: dict[e.Block, _Move] = field(default_factory=dict)
    wanted: dict[e.Block, _Move] = field(default_factory=dict)
    given: dict[e.Block, _Move] = field(default_factory=dict)
    calling: tuple[e.Block, ...] | None = None
    failures: int = 0
    next_call_s: float = 0.0
    full_until_s: float = float("-inf")
    given_up: bool = False
    again_s: float = 0.0  # if given up: the time of the next try, with later fills

    def blocks(self) -> list[e.Block]:
        return [*self.fresh, *self.wanted, *self.given]

    def move(self, block: e.Block) -> _Move | None:
        return self.fresh.get(block) or self.wanted.get(block) or self.given.get(block)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.wanted) + len(self.given)

    def clear(self) -> list[_Move]:
        moves = [*self.fresh.values(), *self.wanted.values(), *self.given.values()]
        self.fresh.clear()
        self.wanted.clear()
        self.given.clear()
        return moves


class MigrationSender:
    """The scan and the moves; see the module. `settled`: the last epoch whose moves have ended."""

    def __init__(self, worker: str, bucket: TokenBucket) -> None:
        self.settled = 0
        self.handed = 0  # moves that ended with the block at its owner
        self.given_up = 0  # moves that were given up
        self.blocks = 0  # moves in progress
        self._worker = worker
        self._bucket = bucket
        self._epoch = -1
        self._members: dict[str, float] = {}
        self._now = Placement(())
        self._base: Placement | None = None  # the former placement, if it was settled
        self._receivers: dict[str, _Receiver] = {}
        self._after: bytes | None = None  # the scan continues after this key; None: no scan
        self._scanning = False
        self._next_scan_s = 0.0
        self._failing_since_s = NEVER_S  # the reads of the index, since one that did not fail
        self._leaves_out_silent = False  # this scan: a disk gave no answer for too long
        self._waited = 0  # the moves of `blocks` that delay `settled`
        self._for_view = False  # the scan is for a membership change
        self._for_replicas = False  # the scan is for the other replicas
        self._may_lack = False  # other replicas may lack blocks without a move

    @property
    def is_scanning(self) -> bool:
        return self._after is not None

    @property
    def is_busy(self) -> bool:
        return self.is_scanning or self.blocks > 0 or self._may_lack

    # ---- events ----

    def on_view(self, view: View, now_s: float) -> list[e.Action]:
        owning = {one.id: one.weight for one in view.members if one.weight > 0}
        if view.epoch == self._epoch and owning == self._members:
            return self._new_addresses(view)
        if view.epoch <= self._epoch:  # the master has lost its store
            self.settled = 0
        unchanged = self.settled == self._epoch and owning == self._members
        if self._epoch < 0 and not view.before:  # this worker is back before the members changed
            unchanged = True
        # In an unsettled epoch, blocks may have been filled on this worker only.
        self._base = self._now if self.settled == self._epoch else None
        self._epoch, self._members = view.epoch, owning
        self._now = Placement(view.members)
        self._may_lack |= self._for_replicas or self.blocks > self._waited
        self._receivers, self.blocks, self._waited = {}, 0, 0
        self._for_view = bool(owning) and not unchanged
        self._begin_scan(now_s)
        return self.advance(now_s)

    def _begin_scan(self, now_s: float) -> None:
        """Starts a scan of all contents, if it has a purpose."""
        self._for_replicas = self._may_lack and bool(self._members)
        self._may_lack &= not self._for_replicas
        self._after = b"" if self._for_view or self._for_replicas else None
        self._scanning = False
        self._next_scan_s = now_s + SCAN_AFTER_S
        self._failing_since_s, self._leaves_out_silent = NEVER_S, False

    def _new_addresses(self, view: View) -> list[e.Action]:
        """Adopts a view with the same members, some of them perhaps at other URLs."""
        self._now = Placement(view.members)
        for member in view.members:
            receiver = self._receivers.get(member.id)
            if receiver is not None and receiver.member != member:
                receiver.member = member
                receiver.failures, receiver.next_call_s = 0, 0.0
        return []

    def on_scanned(self, event: e.Scanned, now_s: float) -> list[e.Action]:
        if event.epoch != self._epoch or not self._scanning:
            return []
        self._scanning = False
        if event.failed:
            self._next_scan_s = now_s + SCAN_PAUSE_S
            self._failing_since_s = min(self._failing_since_s, now_s)
            self._leaves_out_silent |= now_s - self._failing_since_s >= GIVE_UP_S
            return []
        self._failing_since_s = NEVER_S
        for holding in event.holdings:
            self._look_at(holding, now_s, self._heirs)
        self._after = event.after or None
        return self.advance(now_s)

    def on_filled(self, event: e.Filled, now_s: float) -> list[e.Action]:
        for holding in event.holdings:
            if self.blocks >= WINDOW_BLOCKS:
                self._may_lack = True
            else:
                self._look_at(holding, now_s, self._others)
        return self.advance(now_s)

    def on_owners_changed(self, now_s: float) -> list[e.Action]:
        self._may_lack = True
        return self.advance(now_s)

    def on_have(self, event: e.HaveReplied, now_s: float) -> list[e.Action]:
        receiver = self._answered(event.epoch, event.peer)
        if receiver is None:
            return []
        blocks, receiver.calling = receiver.calling or (), None
        if event.pages is None:
            self._back_off(receiver, now_s)
        else:
            receiver.failures = 0
            for block in blocks:
                self._compare(receiver, block, event.pages.get(block[0], 0), now_s)
        return self._call(receiver, now_s) + self._scan(now_s)

    def on_offer_answered(self, event: e.OfferReplied, now_s: float) -> list[e.Action]:
        receiver = self._answered(event.epoch, event.peer)
        if receiver is None:
            return []
        blocks, receiver.calling = receiver.calling or (), None
        if event.failure is None:
            receiver.failures = 0
            self._accepted(receiver, blocks, now_s)
        else:
            self._refused(receiver, blocks, event.failure, now_s)
        return self._call(receiver, now_s) + self._scan(now_s)

    def on_outdated(self, event: e.Outdated) -> list[e.Action]:
        """Ends the moves of stale contents, before the result of their offer."""
        receiver = self._answered(event.epoch, event.peer)
        if receiver is not None:
            for block in [block for block in receiver.calling or () if block[0] in event.keys]:
                if (move := receiver.wanted.pop(block, None)) is not None:
                    self._ended(move)
        return []

    def advance(self, now_s: float) -> list[e.Action]:
        """Returns the due actions. Also called periodically."""
        actions: list[e.Action] = []
        for receiver in self._receivers.values():
            actions += self._call(receiver, now_s)
        return actions + self._scan(now_s)

    def _scan(self, now_s: float) -> list[e.Action]:
        """Continues the scan if the window has room; updates `settled`; starts a scan for the other
        replicas if it is due."""
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
        return [e.Scan(self._epoch, self._after, SCAN_CONTENTS, self._leaves_out_silent)]

    # ---- moves ----

    def _look_at(self, holding: Holding, now_s: float, owners_of: OwnersOf) -> None:
        ino, bits, block = e.ino_of(holding.key), holding.bits, 0
        waited = owners_of == self._heirs and self._for_view
        while bits:
            here = e.pages_of(bits, 0)
            for owner in owners_of(ino, block, holding.replicas) if here else ():
                move = _Move(here, holding.size_bytes, holding.replicas, waited)
                self._begin(owner, (holding.key, block), move, now_s)
            bits >>= e.BLOCK_PAGES
            block += 1

    def _others(self, ino: int, block: int, replicas: int) -> list[Member]:
        """Returns the other replicas if this worker is the primary owner."""
        first, *others = self._now.owners(ino, block, replicas) or (None,)
        return others if first is not None and first.id == self._worker else []

    def _heirs(self, ino: int, block: int, replicas: int) -> list[Member]:
        """Returns the owners to which this worker offers the block, in a scan."""
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

    def _begin(self, owner: Member, block: e.Block, move: _Move, now_s: float) -> None:
        receiver = self._receivers.get(owner.id)
        if receiver is None:
            receiver = self._receivers[owner.id] = _Receiver(owner, now_s)
        if receiver.given_up and not move.waited and now_s >= receiver.again_s:
            receiver.given_up = False
        if receiver.given_up or now_s < receiver.full_until_s:
            self.given_up += 1
            return
        if not len(receiver):
            receiver.progress_s = now_s
        known = receiver.move(block)
        if known is not None:
            known.bits |= move.bits
            self._waited += move.waited and not known.waited
            known.waited |= move.waited
            return
        receiver.fresh[block] = move
        self.blocks += 1
        self._waited += move.waited

    def _ended(self, move: _Move) -> None:
        self.blocks -= 1
        self._waited -= move.waited

    # ---- calls ----

    def _call(self, receiver: _Receiver, now_s: float) -> list[e.Action]:
        """Returns the next call to a receiver, if it is due."""
        self._give_up_if_stuck(receiver, now_s)
        if receiver.calling is not None or now_s < receiver.next_call_s:
            return []
        return self._offer(receiver, now_s) or self._ask(receiver, now_s)

    def _offer(self, receiver: _Receiver, now_s: float) -> list[e.Action]:
        if not receiver.wanted:
            return []
        blocks: list[e.Block] = []
        for block, move in receiver.wanted.items():
            if len(blocks) == BATCH_LIMIT or not self._bucket.is_open(now_s):
                break
            blocks.append(block)
            if not move.offers:
                self._bucket.charge(_size_bytes(block, move), now_s)
        if not blocks:
            if not receiver.given:
                receiver.progress_s = now_s  # the rate limit here delays it
            return []
        receiver.calling = tuple(blocks)
        counts = tuple(receiver.wanted[block].replicas for block in blocks)
        return [e.SendOffer(self._epoch, receiver.member, receiver.calling, counts)]

    def _ask(self, receiver: _Receiver, now_s: float) -> list[e.Action]:
        blocks = [*islice(receiver.fresh, BATCH_LIMIT)]
        for block, move in islice(receiver.given.items(), BATCH_LIMIT - len(blocks)):
            if now_s - move.asked_s < CONFIRM_S:
                break  # the oldest request is first
            blocks.append(block)
        if not blocks:
            return []
        receiver.calling = tuple(blocks)
        contents = tuple(dict.fromkeys(key for key, _ in blocks))
        return [e.AskHave(self._epoch, receiver.member, contents)]

    def _answered(self, epoch: int, peer: str) -> _Receiver | None:
        receiver = self._receivers.get(peer) if epoch == self._epoch else None
        return receiver if receiver is not None and receiver.calling is not None else None

    def _compare(self, receiver: _Receiver, block: e.Block, bits: int, now_s: float) -> None:
        move = receiver.fresh.pop(block, None)
        known = move is None
        if move is None:
            move = receiver.given.pop(block, None)
        if move is None:
            return
        missing = move.bits & ~e.pages_of(bits, block[1])
        if not missing:
            self.handed += 1
            self._ended(move)
            receiver.progress_s = now_s
            return
        if known and missing != move.missing:
            receiver.progress_s = move.offered_s = now_s
            move.offers = 1
        move.missing, move.asked_s = missing, now_s
        stuck = not known or now_s - move.offered_s >= REOFFER_S
        (receiver.wanted if stuck else receiver.given)[block] = move

    def _accepted(self, receiver: _Receiver, blocks: Iterable[e.Block], now_s: float) -> None:
        for block in blocks:
            move = receiver.wanted.pop(block, None)
            if move is None:
                continue
            if move.offers < PATIENT_OFFERS:
                receiver.progress_s = now_s
            move.offers += 1
            move.offered_s = move.asked_s = now_s
            receiver.given[block] = move

    def _refused(
        self, receiver: _Receiver, blocks: Iterable[e.Block], failure: CacheFSError, now_s: float
    ) -> None:
        if isinstance(failure, NoSpace):
            receiver.full_until_s = now_s + FULL_S
            self._drop(receiver)
            return
        for block in blocks:
            move = receiver.wanted.get(block)
            if move is not None and not move.offers:
                self._bucket.charge(-_size_bytes(block, move), now_s)
        self._back_off(receiver, now_s)

    def _back_off(self, receiver: _Receiver, now_s: float) -> None:
        receiver.failures += 1
        receiver.next_call_s = now_s + min(MOST_BACKOFF_S, 0.25 * 2 ** min(receiver.failures, 10))

    def _give_up_if_stuck(self, receiver: _Receiver, now_s: float) -> None:
        if len(receiver) and now_s - receiver.progress_s >= GIVE_UP_S:
            receiver.given_up = True
            receiver.again_s = now_s + GIVE_UP_S
            receiver.calling = None
            self._drop(receiver)

    def _drop(self, receiver: _Receiver) -> None:
        for move in receiver.clear():
            self.given_up += 1
            self._ended(move)

    def check_invariants(self) -> None:
        assert self.blocks == sum(len(receiver) for receiver in self._receivers.values())
        for id, receiver in self._receivers.items():
            assert id != self._worker, "nothing is handed to ourselves"
            queues = (receiver.fresh, receiver.wanted, receiver.given)
            assert len(set().union(*queues)) == len(receiver), "a block is in one state"
            assert not (receiver.given_up and len(receiver))
            assert all(move.missing for queue in queues[1:] for move in queue.values())
        assert self.settled <= max(0, self._epoch)
        receivers = self._receivers.values()
        moves = [receiver.move(block) for receiver in receivers for block in receiver.blocks()]
        assert self._waited == sum(move.waited for move in moves if move is not None)
        if self.settled == self._epoch:
            assert not self._waited
            assert self._after is None or not self._for_view


def _size_bytes(block: e.Block, move: _Move) -> int:
    """Returns the bytes of the pages that the receiver lacks."""
    size_bytes = move.missing.bit_count() * PAGE_BYTES
    last = (move.size_bytes - 1) // PAGE_BYTES - block[1] * e.BLOCK_PAGES
    if 0 <= last < e.BLOCK_PAGES and move.missing >> last & 1:
        size_bytes -= -move.size_bytes % PAGE_BYTES
    return size_bytes
