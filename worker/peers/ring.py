"""Who owns which block, as this node knows it now. Read from any thread; a new view replaces
everything at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachefs.core.model import ContentId
from cachefs.core.placement import Member, Placement, View
from worker.fill.source import Purpose
from worker.peers.search import Candidate, candidates


class _Known:
    """One view. Never changes."""

    __slots__ = ("before", "between", "now", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self.now = Placement(view.members)
        self.before = Placement(view.before)
        self.between = [Placement(members) for members in view.between[::-1]]

    def passing_owners(self, ino: int, block: int, replicas: int) -> list[Member]:
        """Who owned a block for a while since all was in its place, the last ones first: they may
        have what came meanwhile."""
        return [one for place in self.between for one in place.owners(ino, block, replicas)]


class Ring:
    """`me` is this node's member id. `replicas`: how many own a block of the content in question,
    see `cachefs.core.policies`."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._known = _Known(View(-1))

    @property
    def view(self) -> View:
        return self._known.view

    @property
    def epoch(self) -> int:
        return self._known.view.epoch

    def update(self, view: View) -> None:
        """From the loop."""
        self._known = _Known(view)

    def owners(self, ino: int, block: int, replicas: int = 1) -> tuple[Member, ...]:
        """The first of them first."""
        return self._known.now.owners(ino, block, replicas)

    def rank(self, ino: int, block: int, replicas: int = 1) -> int:
        """This node's among the owners, and the one after them, who stands in; -1: none."""
        ranked = self._known.now.owners(ino, block, replicas + 1)
        return next((rank for rank, one in enumerate(ranked) if one.id == self.me), -1)

    def owns(self, ino: int, block: int, replicas: int = 1) -> bool:
        """Is this node one of the owners?"""
        return 0 <= self.rank(ino, block, replicas) < replicas

    def owns_content(self, key: bytes, block: int = 0, replicas: int = 1) -> bool:
        """The same by a content's key."""
        return self.owns(ContentId.of_key(key).ino, block, replicas)

    def waits(self, ino: int, block: int) -> int | None:
        """Does a reader here wait for another owner to bring it? The epoch by which it does."""
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
        """See `worker.peers.search.candidates`."""
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
