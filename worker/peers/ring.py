"""Who owns which block, as this node knows it now. Read from any thread; a new view replaces
everything at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachefs.core.model import ContentId
from cachefs.core.placement import Member, Placement, View
from worker.source import Purpose
from worker.state.search import Candidate, candidates


class _Known:
    """One view. Never changes."""

    __slots__ = ("before", "now", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self.now = Placement(view.members)
        self.before = Placement(view.before)


class Ring:
    """`me` is this node's member id."""

    def __init__(self, me: str, *, replicas: int = 1) -> None:
        self.me = me
        self.replicas = replicas
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

    def owners(self, ino: int, block: int) -> tuple[Member, ...]:
        """The first of them first."""
        return self._known.now.owners(ino, block, self.replicas)

    def rank(self, ino: int, block: int) -> int:
        """This node's among the owners, and the one after them, who stands in; -1: none."""
        ranked = self._known.now.owners(ino, block, self.replicas + 1)
        return next((rank for rank, one in enumerate(ranked) if one.id == self.me), -1)

    def owns(self, ino: int, block: int) -> bool:
        """Is this node one of the owners?"""
        return 0 <= self.rank(ino, block) < self.replicas

    def owns_content(self, key: bytes, block: int = 0) -> bool:
        """The same by a content's key."""
        return self.owns(ContentId.parse(key.hex()).ino, block)

    def waits(self, ino: int, block: int) -> bool:
        """Does a reader here wait for another owner to bring it?"""
        owners = self.owners(ino, block)
        return bool(owners) and owners[0].id != self.me

    def candidates(
        self, ino: int, block: int, purpose: Purpose, holders: Sequence[Member] = ()
    ) -> list[Candidate]:
        """See `worker.state.search.candidates`."""
        known = self._known
        return candidates(
            known.now,
            known.before,
            self.me,
            ino,
            block,
            purpose=purpose,
            replicas=self.replicas,
            holders=holders,
        )
