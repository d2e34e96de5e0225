"""The decisions of migration, after a membership change and after fills: the blocks to send to
other owners, and those to receive. Pure: `handle(event, now) -> actions`, which
`worker.migration.migration` executes. Views arrive in the order of `worker.membership.member`;
epochs decrease only if the master lost its store.

`settled` is the last epoch in which the migration of this worker is complete: each owner has
confirmed the blocks sent to it, or was given up, and no offer of others is pending. `settled`
decreases only if the epoch does. A later offer delays the sender's `settled`, not the receiver's;
the replication of a fill delays none.
"""

from __future__ import annotations

from typing import Final

from worker.migration import events as e
from worker.migration.receiver import MigrationReceiver
from worker.migration.sender import MigrationSender
from worker.runtime.rate import TokenBucket

DEFAULT_BYTES_PER_S: Final = 200 << 20


class MigrationDecisions:
    """The migration of one worker. `bytes_per_s` bounds its received and its offered bytes each."""

    def __init__(self, worker: str, *, bytes_per_s: float = DEFAULT_BYTES_PER_S) -> None:
        self.giver = MigrationSender(worker, TokenBucket(bytes_per_s))
        self.taker = MigrationReceiver(worker, TokenBucket(bytes_per_s))
        self.epoch = -1
        self.settled = 0

    def handle(self, event: e.Event, now_s: float) -> list[e.Action]:
        """Returns the actions for an event; the first action for an offer is its `OfferReply`."""
        actions = self._handle(event, now_s)
        if self.giver.settled == self.epoch and self.taker.is_idle:
            self.settled = max(self.settled, self.epoch)
        return actions

    def _handle(self, event: e.Event, now_s: float) -> list[e.Action]:
        match event:
            case e.ViewReceived(view):
                if view.epoch < self.epoch:
                    self.settled = 0
                self.epoch = view.epoch
                return self.taker.on_view(view) + self.giver.on_view(view, now_s)
            case e.TimePassed():
                return self.giver.advance(now_s) + self.taker.advance(now_s)
            case e.Scanned():
                return self.giver.on_scanned(event, now_s)
            case e.Filled():
                return self.giver.on_filled(event, now_s)
            case e.OwnersChanged():
                return self.giver.on_owners_changed(now_s)
            case e.HaveReplied():
                return self.giver.on_have(event, now_s)
            case e.OfferReplied():
                return self.giver.on_offer_answered(event, now_s)
            case e.Outdated():
                return self.giver.on_outdated(event)
            case e.OfferReceived(offer):
                return self.taker.on_offer(offer, now_s)
            case e.PagesCompared():
                return self.taker.on_looked(event, now_s)
            case e.PagesFetched():
                return self.taker.on_brought(event, now_s)

    @property
    def is_at_work(self) -> bool:
        return self.settled < self.epoch or self.giver.is_busy or not self.taker.is_idle

    def status(self) -> dict[str, int]:
        """Returns plain values for `cachefs status`."""
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
