"""The covers of one view: laid, removed, and awaited. Owned by the loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from cachefs.core.model import NamespaceId
from worker.runtime.tasks import Signal, wait_at_most
from worker.views.cover_table import CoverTable
from worker.views.hosts import CoverHost

log = logging.getLogger(__name__)

UNCOVER_S: Final = 3.0  # for all clients together; then the worker removes the covers itself
LOOK_S: Final = 0.2  # between two looks at the kernel's mounts


class CoverPlace(NamedTuple):
    """What is covered, and by which descriptor (O_PATH)."""

    namespace: NamespaceId
    ino: int
    path: bytes
    fd: int


class Covers:
    """The covers of one number. Another number is used after they were removed. `close` closes the
    descriptor of the place."""

    def __init__(self, number: int, *, uncertain: bool = False) -> None:
        self.number = number
        self.reason = ""  # why the last cover was not laid
        self._table = CoverTable[CoverHost](uncertain=uncertain)
        self._place: CoverPlace | None = None
        self._changed = Signal()

    @property
    def count(self) -> int:
        return self._table.count

    def open(self, place: CoverPlace) -> None:
        """Lays covers at this place from now on, and owns its descriptor."""
        self.close()
        self._place = place

    def close(self) -> None:
        if self._place is not None:
            os.close(self._place.fd)
            self._place = None

    def lay(self, hosts: Iterable[CoverHost]) -> None:
        """Covers the mounts that are not covered. A client that has died leaves `hosts` then."""
        for host in [*hosts]:
            if self._place is not None and self._table.lay(host):
                self._send(host, may_be_covered=False)

    def _send(self, host: CoverHost, *, may_be_covered: bool) -> None:
        """Has a mount covered, at a later call if no descriptor is left."""
        assert self._place is not None
        namespace, ino, path, fd = self._place
        try:
            own = os.dup(fd)
        except OSError as err:
            self._table.end(host, host.mountpoint, is_followed=may_be_covered)
            self.reason = err.strerror or str(err)
            return log.warning("%s is not covered: %s", host.mountpoint, self.reason)
        host.send_cover(self.number, namespace, ino, path, own)

    def reported(self, host: CoverHost, *, covered: bool, reason: str) -> bool:
        """Takes a report. Returns whether a cover was lost that was not to be removed."""
        was_laid = self._table.is_laid(host)
        self._table.heard(host.mountpoint)
        if self._table.report(host, covered=covered):
            host.send_uncover(self.number)
        self.reason = reason
        self._changed.notify()
        return was_laid and not covered

    def ended(self, host: CoverHost, *, is_followed: bool) -> None:
        # In an upgrade the successor reports before its predecessor ends.
        others = [one for one in self._table.hosts if one is not host]
        if any(one.mountpoint == host.mountpoint for one in others):
            is_followed = False
        self._table.end(host, host.mountpoint, is_followed=is_followed)
        self._changed.notify()

    def followed(self, host: CoverHost) -> None:
        """Queries the client of a mount that an earlier client may have covered."""
        if not self._table.follow(host, host.mountpoint):
            return
        if self._table.is_leaving or self._place is None:
            host.send_uncover(self.number)
        else:
            self._send(host, may_be_covered=True)

    async def remove(
        self, monotonic: Callable[[], float], is_nowhere: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Has the clients remove all covers. Returns False if some may still exist after
        `UNCOVER_S`. `is_nowhere` returns whether the kernel has no mount of the tree. Cancelled:
        the clients remove the covers all the same."""
        for host in self._table.leave():
            host.send_uncover(self.number)
        until_s = monotonic() + UNCOVER_S
        while not self._table.is_clear and (left_s := until_s - monotonic()) > 0:
            await self._settle(is_nowhere)
            if not self._table.is_clear:
                await self._changed.wait(min(left_s, LOOK_S))
        return self._table.is_clear

    async def _settle(self, is_nowhere: Callable[[], Awaitable[bool]]) -> None:
        """Forgets covers that were never reported, or whose client ended, if none exists."""
        orphans = self._table.orphans
        if (orphans or self._table.uncertain) and await is_nowhere():
            self._table.settle(orphans)


async def pause(until_s: float, monotonic: Callable[[], float], woken: asyncio.Event) -> None:
    """Waits until that time (monotonic), or until `woken` is set."""
    await wait_at_most(woken, max(0.0, until_s - monotonic()))
