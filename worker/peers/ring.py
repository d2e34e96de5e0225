"""Who owns which block, as this node knows it now. Read from any thread; a new view replaces
everything at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefs.core.model import ContentId
from cachefs.core.placement import Member, Placement, View
from worker.source import Purpose
from worker.state.search import Candidate, candidates

MOST_EARLIER: Final = 3  # placements that never settled


class _Known:
    """One view, and the placements between the last settled one and this. Never changes."""

    __slots__ = ("before", "earlier", "living", "now", "view")

    def __init__(self, view: View, last: _Known | None = None) -> None:
        self.view = view
        self.now = Placement(view.members)
        self.before = Placement(view.before)
        self.living = {one.id: one for one in (*view.before, *view.members)}
        self.earlier: tuple[Placement, ...] = ()
        if last is not None and view.before and last.view.before:
            passed = (last.now,) if view.epoch > last.view.epoch else ()
            self.earlier = (*last.earlier, *passed)[-MOST_EARLIER:]

    def passing_owners(self, ino: int, block: int, replicas: int) -> list[Member]:
        """Who owned a block since all was in its place, if only for a while: it may have what came
        meanwhile. The last ones first."""
        found = (one for place in self.earlier[::-1] for one in place.owners(ino, block, replicas))
        return [self.living[one.id] for one in found if one.id in self.living]


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
        self._known = _Known(view, self._known)

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
        return self.owns(ContentId.parse(key.hex()).ino, block, replicas)

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
        """See `worker.state.search.candidates`."""
        known = self._known
        if known.earlier:
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
