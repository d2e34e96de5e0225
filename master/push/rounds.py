"""The rounds in which the reported names of a source are checked.

Reports that arrive together are checked together: a check costs a write of the store, events for
the workers and requests to the origin, however many names it has. A sender that waits for each
answer before it sends the next report gets a round of its own at once. Reports that arrive while
others are checked wait for further ones: as long as some arrive, and `PAUSES_S` in all at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from master.tree import Mount

PAUSES_S: Final = (0.002, 0.004, 0.008, 0.016, 0.032)
MOST_NAMES: Final = 1000  # of a round to which reports are added: each holds up the loop

Check = Callable[[Mount, Sequence[bytes]], Awaitable[None]]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class _Round:
    """The names of the reports of one round, and their check."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self.names: dict[bytes, None] = {}
        self.reports = 0
        self.check: asyncio.Task[None] | None = None


class Rounds:
    """The rounds of one namespace. All methods belong to one event loop."""

    def __init__(self, check: Check, spawn: Spawn) -> None:
        self._check = check
        self._spawn = spawn
        self._open: dict[int, _Round] = {}  # by the root's ino
        self._checking = 0  # rounds
        self._is_crowded = False  # the last round had several reports

    async def check(self, mount: Mount, names: Sequence[bytes]) -> None:
        """Checks the names in a round. Raises its error, which may be about another report. A
        cancellation does not end the round."""
        found = self._open.get(mount.root)
        if found is None or found.mount is not mount or len(found.names) >= MOST_NAMES:
            found = self._open[mount.root] = _Round(mount)
            found.check = self._spawn(self._run(found))
        found.names.update(dict.fromkeys(names))
        found.reports += 1
        assert found.check is not None
        await asyncio.shield(found.check)

    async def _run(self, one: _Round) -> None:
        try:
            if self._checking or self._is_crowded:
                await _gather(one)
        finally:
            if self._open.get(one.mount.root) is one:
                del self._open[one.mount.root]
        self._is_crowded = one.reports > 1
        self._checking += 1
        try:
            await self._check(one.mount, [*one.names])
        finally:
            self._checking -= 1


async def _gather(one: _Round) -> None:
    """Waits until no further report arrives."""
    for pause_s in PAUSES_S:
        before = one.reports
        await asyncio.sleep(pause_s)
        if one.reports == before or len(one.names) >= MOST_NAMES:
            return
