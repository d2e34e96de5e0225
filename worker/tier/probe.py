"""The watch of the tier's disk: takes the tier out of service while the disk does not answer, and
back. Owned by the loop. One separate thread uses the disk, and may hang with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from cachefs.core.errors import lacks_descriptors
from worker.runtime.log_backoff import LogBackoff
from worker.runtime.tasks import wait_at_most
from worker.runtime.threads import Threads
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.disk import TierDisk
from worker.tier.health import Act, Watch, is_full

log = logging.getLogger(__name__)

LOOK_S: Final = 0.25
HANGS: Final = "the disk does not answer"
FAILS: Final = "the disk fails"
BROKEN: Final = "its index is not reliable: it is used again once the worker is started again"
LOST: Final = "bytes that were written to the disk are lost"


class Transfers(Protocol):
    """The transfers in progress to the tier's disk, or bypassing it."""

    def look(self) -> None:
        """Ends stalled transfers. Called a few times a second."""

    def disk_writes(self) -> list[Hashable]:
        """Returns the disk writes in progress, each by a unique key."""

    def leave_tier(self) -> None:
        """The disk does not answer: nothing more is written to it."""

    def return_to_tier(self) -> None:
        """The disk answers again."""


class TierWatch:
    """Calls `on_change(in_service)` after a change. `run` is the one task."""

    def __init__(
        self,
        context: TierContext,
        disk: TierDisk,
        contents: Contents,
        transfers: Transfers,
        on_change: Callable[[bool], None],
    ) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._transfers = transfers
        self._watch = Watch()
        self._broken = self._disk.health.broken
        self._prober = Threads("probe", 1, self._disk.wake)
        self._soon = asyncio.Event()
        self._pace = LogBackoff()  # of what is logged about probes that fail
        self._error = ""  # of the last probe
        self._on_change = on_change

    def suspect(self) -> None:
        """A client cannot read from the disk."""
        self._watch.suspect()
        self._soon.set()

    def withdraw(self) -> None:
        """Takes the tier out of service until `restore`, and notifies clients that its files are
        doubtful."""
        if self._watch.hold():
            self._leave("sync", LOST)
        else:
            self._context.counters.errors["sync"] += 1
            self._on_change(False)

    def restore(self) -> None:
        """Returns the tier to service with the next probe that succeeds."""
        self._watch.let_go()
        self._soon.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await wait_at_most(self._soon, LOOK_S)
            self._soon.clear()
            self.look()

    def look(self) -> None:
        """Checks once what is in progress."""
        self._transfers.look()
        commits = [(self._disk.writer, step)] if (step := self._disk.writer.at_disk) & 1 else []
        writes = self._transfers.disk_writes()
        now = self._context.monotonic()
        if self._disk.health.broken != self._broken:
            self._broken = self._disk.health.broken
            self._watch.suspect()
        calls = [*self._disk.threads.calls(), *self._disk.outside, *commits]
        broken = self._disk.writer.broken is not None or self._disk.health.lost
        if broken and not self._disk.health.in_service:
            self._disk.health.cause = BROKEN
        match self._watch.look(calls, writes, now, for_good=broken):
            case Act.PROBE:
                self._prober.submit(self._disk.directory.probe, done=self._probed)
            case Act.LEAVE if broken:
                log.error(
                    "the cache's index cannot be written: the cache is out of service, reads go "
                    "past it; it is used again once the worker is started again"
                )
                self._leave("index", BROKEN)
            case Act.LEAVE:
                cause = f"{FAILS} ({self._error})" if self._error else HANGS
                log.error(
                    "the cache is out of service, reads go past it: %s; it is used again once the "
                    "cache disk answers",
                    cause,
                )
                self._leave(cause=cause)
            case Act.RETURN:
                self._return()

    def _probed(self, right: object, error: BaseException | None) -> None:
        now = self._context.monotonic()
        answered = error is None and right is True
        self._error = (error.strerror or str(error)) if isinstance(error, OSError) else ""
        if isinstance(error, OSError):
            # It answers, though it takes nothing; or it was not asked.
            answered = is_full(error) or lacks_descriptors(error)
            if self._pace.is_due(now):  # one probe a second ends so while the disk is away
                log.warning("the cache disk answers a probe with %s", error.strerror or error)
        if error is None:
            self._pace.over()
        self._watch.probed(now, answered=answered)
        self._soon.set()

    def _leave(self, kind: str = "hang", cause: str = HANGS) -> None:
        self._context.counters.errors[kind] += 1
        self._disk.leave_service(cause)
        self._transfers.leave_tier()
        self._contents.room_changed.notify()
        self._on_change(False)

    def _return(self) -> None:
        log.info("the cache disk answers again")
        self._disk.return_to_service()
        self._transfers.return_to_tier()
        self._on_change(True)

    def close(self, wait_s: float) -> bool:
        """Ends the thread. Returns False if a probe is in progress after `wait_s`. Blocks."""
        return self._prober.close(wait_s)
