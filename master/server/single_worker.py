"""The membership of a master whose only worker runs in the same process: it never changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cachefs.core.cluster import HEARTBEAT_S, Register, WorkerRow
from cachefs.core.errors import Unsupported
from cachefs.core.placement import Member, View

WORKER: Final = "local"


class SingleWorkerMembership:
    """The counterpart of `Members`. `row` returns the worker's present row."""

    heartbeat_s: Final = HEARTBEAT_S
    unsettled_since_s: Final = 0.0

    def __init__(self, row: Callable[[], WorkerRow]) -> None:
        self._row = row
        self.view = View(0, (Member(WORKER, "", 1.0),))

    def rows(self) -> list[WorkerRow]:
        return [self._row()]

    def counts(self) -> dict[str, int]:
        return {"serving": 1, "draining": 0, "drained": 0, "lost": 0}

    async def register(self, event: Register) -> View:
        raise _alone()

    async def handle(self, event: object) -> object:
        raise _alone()

    async def later_view(self, after: int, wait_s: float) -> View:
        return self.view


def _alone() -> Unsupported:
    return Unsupported("the only worker is the server of this mount", remedy="set up a cluster")
