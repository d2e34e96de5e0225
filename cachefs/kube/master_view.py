"""What the master answered last, for all Datasets: one request for their sources, in turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.kube.master_calls import MasterCalls
from cachefs.kube.steps import Attached, Master

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
AWAY_S: Final = 2.0  # between two requests while it does not answer


class MasterView:
    """The view. `changed` is called with the paths whose sources were added, removed or have
    another warning; with None if the master stops or starts answering. Belongs to one event
    loop."""

    def __init__(self, calls: MasterCalls, changed: Callable[[Iterable[str] | None], None]) -> None:
        self._calls = calls
        self._changed = changed
        self._changes = 0  # by the controller itself
        self.master: Master | None = None

    async def run(self) -> None:
        """Reads the master's sources until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(AWAY_S if self.master and self.master.away else LOOK_S)

    async def look(self) -> None:
        """Reads the sources once. Raises nothing."""
        changes = self._changes
        try:
            sources = await self._calls.sources()
        except CacheFSError as err:
            return self.is_away(err.one_line())
        if changes == self._changes:  # else the reply may be older than the change
            self._put(Master(sources=sources))
        elif self.master is None or self.master.away:
            await self.look()

    def is_away(self, cause: str) -> None:
        """The master did not answer a request."""
        known = self.master.sources if self.master is not None else {}
        if self.master is None or not self.master.away:
            log.warning("the master is away: %s", cause)
            self.master = Master(cause, known)
            self._changed(None)

    def attached(self, path: str, source: Attached) -> None:
        """The controller has attached a source."""
        self._change({**self._sources(), path: source})

    def detached(self, path: str) -> None:
        """The controller has detached a source."""
        self._change({name: one for name, one in self._sources().items() if name != path})

    def _change(self, sources: dict[str, Attached]) -> None:
        self._changes += 1
        away = self.master.away if self.master is not None else ""
        self.master = Master(away, sources)

    def _sources(self) -> dict[str, Attached]:
        return dict(self.master.sources) if self.master is not None else {}

    def _put(self, master: Master) -> None:
        before, self.master = self.master, master
        if before is None or before.away:
            log.info("the master answers, with %d sources", len(master.sources))
            return self._changed(None)
        paths = before.sources.keys() | master.sources.keys()
        differing = [path for path in paths if before.sources.get(path) != master.sources.get(path)]
        if differing:
            self._changed(differing)
