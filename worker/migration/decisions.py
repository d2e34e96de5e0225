"""Blocks find their new places after a change of members, and their further owners after a fill:
gives what is others' (too), takes what is ours. Pure: `handle(event, now) -> actions`;
`worker.migration.migration` acts. Views come in the order of `worker.membership.member`, which goes
back to an earlier epoch only for a master that lost its store.

`settled` is the last epoch for which everything here is where it belongs: all that had to be handed
over reached its owners (each was asked), and nothing that was offered here waits. It never falls:
what is offered later is waited for by who offers it, and further owners of what has just come are
not waited for at all.
"""

from __future__ import annotations

from typing import Final

from worker.migration.events import (
    Action,
    Brought,
    Event,
    Filled,
    HaveCame,
    LookedAt,
    OfferAnswered,
    OfferCame,
    Outdated,
    OwnersChanged,
    Scanned,
    Tick,
    ViewCame,
)
from worker.migration.receiver import Taker
from worker.migration.sender import Giver
from worker.runtime.rate import TokenBucket

DEFAULT_BYTES_PER_S: Final = 200 << 20


class Migration:
    """Of one worker, by its id. `bytes_per_s` bounds what it takes, and what it offers."""

    def __init__(self, worker: str, *, bytes_per_s: float = DEFAULT_BYTES_PER_S) -> None:
        self.giver = Giver(worker, TokenBucket(bytes_per_s))
        self.taker = Taker(worker, TokenBucket(bytes_per_s))
        self.epoch = -1
        self.settled = 0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What is to be done now. An offer's first action is its `Answer`."""
        actions = self._handle(event, now_s)
        if self.giver.settled == self.epoch and self.taker.is_idle:
            self.settled = max(self.settled, self.epoch)
        return actions

    def _handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case ViewCame(view):
                if view.epoch < self.epoch:
                    self.settled = 0
                self.epoch = view.epoch
                return self.taker.on_view(view) + self.giver.on_view(view, now_s)
            case Tick():
                return self.giver.advance(now_s) + self.taker.advance(now_s)
            case Scanned():
                return self.giver.on_scanned(event, now_s)
            case Filled():
                return self.giver.on_filled(event, now_s)
            case OwnersChanged():
                return self.giver.on_owners_changed(now_s)
            case HaveCame():
                return self.giver.on_have(event, now_s)
            case OfferAnswered():
                return self.giver.on_offer_answered(event, now_s)
            case Outdated():
                return self.giver.on_outdated(event)
            case OfferCame(offer):
                return self.taker.on_offer(offer, now_s)
            case LookedAt():
                return self.taker.on_looked(event, now_s)
            case Brought():
                return self.taker.on_brought(event, now_s)

    @property
    def is_at_work(self) -> bool:
        return self.settled < self.epoch or self.giver.is_busy or not self.taker.is_idle

    def status(self) -> dict[str, int]:
        """Plain values for `cachefs status`."""
        return {
            "epoch": self.epoch,
            "settled": self.settled,
            "blocks_to_give": self.giver.blocks,
            "blocks_to_take": self.taker.blocks,
            "blocks_given": self.giver.handed,
            "blocks_given_up": self.giver.given_up,
            "taken_bytes": self.taker.taken_bytes,
        }

    def check_invariants(self) -> None:
        self.giver.check_invariants()
        self.taker.check_invariants()
        assert self.settled <= max(0, self.epoch)
