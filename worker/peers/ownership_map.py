"""The owners of blocks in this node's newest view. Any thread may read; a new view replaces the
former one atomically.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefs.core.model import ContentId
from cachefs.core.placement import Member, Placement, View
from worker.fill.source import Purpose
from worker.peers.source_selection import Candidate, candidates

MOST_LOOKED: Final = 1024  # blocks of a file


class _Known:
    """A view and its placements, and whether the node `me` owns anything. Immutable."""

    __slots__ = ("before", "between", "has_share", "now", "view")

    def __init__(self, view: View, me: str) -> None:
        self.view = view
        self.has_share = any(one.id == me and one.weight > 0 for one in view.members)
        self.now = Placement(view.members)
        self.before = Placement(view.before)
        self.between = [Placement(members) for members in view.between[::-1]]

    def passing_owners(self, ino: int, block: int, replicas: int) -> list[Member]:
        """Returns the owners of a block in the views since the last completed migration, the newest
        first. They may have pages that were filled in that time."""
        return [one for place in self.between for one in place.owners(ino, block, replicas)]


class OwnershipMap:
    """The map from blocks to their owners. `me` is this node's member id. `replicas` is the number
    of owners of each block of a content, see `cachefs.core.policies`."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._known = _Known(View(-1), me)

    @property
    def view(self) -> View:
        return self._known.view

    @property
    def epoch(self) -> int:
        return self._known.view.epoch

    def update(self, view: View) -> None:
        """Replaces the view. Called in the loop."""
        self._known = _Known(view, self.me)

    def owners(self, ino: int, block: int, replicas: int = 1) -> tuple[Member, ...]:
        """Returns the owners of a block, the primary owner first."""
        return self._known.now.owners(ino, block, replicas)

    def rank(self, ino: int, block: int, replicas: int = 1) -> int:
        """Returns this node's rank among the owners of a block. `replicas`: it is the stand-in, the
        node after the owners. -1: neither."""
        ranked = self._known.now.owners(ino, block, replicas + 1)
        return next((rank for rank, one in enumerate(ranked) if one.id == self.me), -1)

    def owns(self, ino: int, block: int, replicas: int = 1) -> bool:
        """Returns whether this node is one of the owners of a block."""
        return 0 <= self.rank(ino, block, replicas) < replicas

    def owns_any(self, ino: int, blocks: int, replicas: int = 1) -> bool:
        """Returns whether this node owns one of a file's first `blocks` blocks. Of more than
        `MOST_LOOKED` blocks each node with a share is assumed to own one."""
        if not self._known.has_share or blocks > MOST_LOOKED:
            return self._known.has_share
        return any(self.owns(ino, block, replicas) for block in range(blocks))

    def shares(self, ino: int, block: int, replicas: int) -> bool:
        """Returns whether this node is one of the owners of a block, and another node is an owner
        or the stand-in."""
        ranked = self._known.now.owners(ino, block, replicas + 1)
        return len(ranked) > 1 and self.owns(ino, block, replicas)

    def owns_content(self, key: bytes, block: int = 0, replicas: int = 1) -> bool:
        """Returns like `owns`, for a content's key."""
        return self.owns(ContentId.of_key(key).ino, block, replicas)

    def waits(self, ino: int, block: int) -> int | None:
        """Returns the epoch of the view if another worker is the block's primary owner, whose fill
        a local reader waits for; else None."""
        known = self._known
        owners = known.now.owners(ino, block)
        return known.view.epoch if owners and owners[0].id != self.me else None

    def candidates(
        self,
        ino: int,
        block: int,
        purpose: Purpose,
        holders: Sequence[Member] = (),
        *,
        replicas: int = 1,
    ) -> list[Candidate]:
        """See `worker.peers.source_selection.candidates`."""
        known = self._known
        if known.between:
            holders = (*holders, *known.passing_owners(ino, block, replicas))
        return candidates(
            known.now,
            known.before,
            self.me,
            ino,
            block,
            epoch=known.view.epoch,
            purpose=purpose,
            replicas=replicas,
            holders=holders,
        )
