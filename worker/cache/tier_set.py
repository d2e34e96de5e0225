"""The tiers of a node: starts them, and starts another where a tier's directory was removed or is
another one (a disk that was unmounted, a folder that was deleted). Owned by the loop.

A tier that is out of service over its old directory returns without help (`worker.tier.probe`). A
tier whose place was taken serves its open handles, past its disk, and is closed with the last.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cachefs.core.errors import BadConfig, CacheFSError, InUse
from cachefs.core.tiers import TierSpec
from worker.cache.grants import TierView
from worker.cache.tier import Tier, TierSetting
from worker.cache.tier_source import OtherTier, TierSource
from worker.cache.tiers_status import Row, counted
from worker.fill.source import Source
from worker.runtime.tasks import Tasks
from worker.runtime.threads import LoopCallbackQueue, Threads
from worker.store.filesystem import directory_identity
from worker.tier.disk import TierDisk
from worker.tier.guarded_reads import DiskReader

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0  # between looks at tiers that are lost
LOOK_LIMIT_S: Final = 5.0
UNREAD_S: Final = 5.5  # a little longer than one read takes at most
POLL_S: Final = 0.01
MOST_RETIRED: Final = 16  # tiers that only serve handles; the oldest is closed before its last


class TierSet:
    """`running` is replaced, never changed: threads read it."""

    def __init__(self, setting: TierSetting, specs: Sequence[TierSpec]) -> None:
        self.specs = specs
        self.clocks = setting.clocks
        self.running: list[Tier] = []
        self.tasks = Tasks()
        self._setting = setting
        self._on_change: list[Callable[[], None]] = []
        self.on_started: Callable[[Tier], None] = _ignore  # called with each tier that is started
        self.on_ended: Callable[[Tier], None] = _ignore  # and with each replaced one that is closed
        self._numbers = itertools.count()
        self._reader = DiskReader()
        self._looker = Threads(
            "tier-look", len(specs), LoopCallbackQueue(asyncio.get_running_loop())
        )
        self._one_look = asyncio.Lock()
        self._looks: dict[int, asyncio.Future[_Look]] = {}
        self._retired: list[Tier] = []
        self._causes: dict[int, str] = {}  # why a tier is lost
        self._devices: dict[int, int] = {}  # where a tier's directory was
        self._past: dict[str, Any] = {}  # what tiers counted that are closed
        self._closed = False

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` from now on when a tier leaves service, returns, or is replaced."""
        self._on_change.append(on_change)

    def _changed(self) -> None:
        for on_change in self._on_change:
            on_change()

    # ---- what there is ----

    def in_service(self) -> list[Tier]:
        """Returns the tiers whose disks answer, the fastest first; it may be none."""
        return [one for one in self.running if one.in_service]

    def views(self) -> list[TierView]:
        known = {one.index: one.view() for one in self.running}
        return [known.get(tier, TierView(tier, -1, False)) for tier in range(len(self.specs))]

    def rows(self) -> list[Row]:
        known = {one.index: one.status() for one in self.running}
        return [
            Row(tier, spec, known.get(tier), self._causes.get(tier, ""))
            for tier, spec in enumerate(self.specs)
        ]

    def past(self) -> dict[str, Any]:
        """Returns what tiers counted whose place was taken."""
        past = self._past
        for one in self._retired:
            past = counted(past, one.status())
        return past

    def _of(self, tier: int) -> Tier | None:
        return next((one for one in self.running if one.index == tier), None)

    # ---- starting ----

    async def start(self) -> None:
        """See `Cache.start`."""
        tiers = range(len(self.specs))
        found = await asyncio.gather(*map(self._start_one, tiers), return_exceptions=True)
        errors = {tier: one for tier, one in enumerate(found) if isinstance(one, BaseException)}
        for one in found:
            if isinstance(one, Tier):
                self._take_in(one)
        for error in errors.values():
            if not self.running or not isinstance(error, CacheFSError) or _is_fatal(error):
                await self.close()
                raise error
        for tier, error in errors.items():
            self._causes[tier] = str(error)
            log.error("tier %s is left out for now: %s", self.specs[tier].path, error)
        self.tasks.start(self._look_after())

    async def _start_one(self, index: int) -> Tier:
        number, source = next(self._numbers), self._source_of(index)
        spec, setting = self.specs[index], self._setting
        return await Tier.start(index, number, spec, setting, source, self._changed)

    def _source_of(self, tier: int) -> Source:
        if len(self.specs) == 1:
            return self._setting.source
        others = functools.partial(self._others, tier)
        return TierSource(self._setting.source, others, self._reader, self._bad_page)

    def _others(self, tier: int) -> list[OtherTier]:
        """Returns the tiers but one. From any thread."""
        return [OtherTier(one.disk, one.contents) for one in self.running if one.index != tier]

    def _take_in(self, one: Tier) -> None:
        others = [other for other in self.running if other.index != one.index]
        self.running = sorted([*others, one], key=lambda other: other.index)
        self._causes.pop(one.index, None)
        self._devices[one.index] = one.identity[0]
        self.on_started(one)

    # ---- a page that is wrong ----

    def _bad_page(self, disk: TierDisk, key: bytes, page: int) -> None:
        """Reports a damaged page. From a thread."""
        disk.wake.call(self._doubt, disk, key, page)

    def _doubt(self, disk: TierDisk, key: bytes, page: int) -> None:
        for one in self.running:
            if one.disk is disk:
                self.tasks.start(one.serving.doubt(key, [page]))

    # ---- what is lost ----

    async def _look_after(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Looks once at what is lost, and at what only serves handles."""
        async with self._one_look:
            # Not of those that were retired just now: other tiers may be about to read from them.
            over = [one for one in self._retired if not one.is_used]
            for old in over or self._retired[:-MOST_RETIRED]:
                await self._end(old)
            for tier in range(len(self.specs)):
                one = self._of(tier)
                if one is None or not one.in_service:
                    await self._try_again(tier, one)

    async def _try_again(self, tier: int, old: Tier | None) -> None:
        looking = self._looks.get(tier)
        if looking is None:
            looking = self._looks[tier] = self._looker.run(_look, self.specs[tier].path)
        await asyncio.wait([looking], timeout=LOOK_LIMIT_S)
        if not looking.done():
            return  # one look at a time: it may hang as the disk does
        del self._looks[tier]
        if looking.exception() is not None:
            return
        identity, device, has_header = looking.result()
        if old is not None and identity == old.identity:
            return  # its own watch returns it to service
        if device != self._devices.get(tier, device) and not has_header:
            self._causes[tier] = "another file system is there now, without this tier"
            return
        await self._replace(tier, old)

    async def _replace(self, tier: int, old: Tier | None) -> None:
        memory = self._setting.shared.memory
        in_memory = old is not None and old.disk.directory.in_memory
        limit_bytes = old.contents.ledger.limit_bytes if old is not None and in_memory else 0
        memory.return_tier(limit_bytes)
        try:
            one = await self._start_one(tier)
        except CacheFSError as err:
            memory.return_tier(-limit_bytes)  # as before
            self._causes[tier] = str(err)
            return
        if old is not None:
            self._retired.append(old)
        log.warning("tier %s is there again", self.specs[tier].path)
        self._take_in(one)
        self._changed()

    async def _end(self, one: Tier) -> None:
        await self._until_unread([one])
        if one.is_used and len(self._retired) <= MOST_RETIRED:
            return  # by a call that began during the wait
        await one.close()
        self.on_ended(one)
        self._past = counted(self._past, one.status())
        self._retired.remove(one)  # only now: it counts meanwhile, totals never fall
        one.context.count_memory(0, 0)

    # ---- the end ----

    async def close(self) -> None:
        """Ends all tiers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self.tasks.close()
        self._reader.close()
        await self._until_unread(self.running)
        ending = [one.close() for one in (*self.running, *self._retired)]
        await asyncio.gather(*ending)
        self._looker.close(0.0)

    async def _until_unread(self, tiers: Sequence[Tier]) -> None:
        """A tier is closed when no other one reads from it; one whose disk hangs is not waited
        for."""
        for _ in range(int(UNREAD_S / POLL_S)):
            if not any(one.disk.outside for one in tiers):
                return
            await asyncio.sleep(POLL_S)


def _ignore(one: Tier) -> None:
    pass


class _Look(NamedTuple):
    """`identity` of the directory (st_dev, st_ino), None when there is none; `device`: its file
    system, or that of its parent; `has_header`: there is a tier."""

    identity: tuple[int, int] | None
    device: int
    has_header: bool


def _look(path: str) -> _Look:
    """Raises OSError where there could be no directory. Blocks."""
    identity = directory_identity(path)
    device = identity[0] if identity else os.stat(os.path.dirname(path)).st_dev
    return _Look(identity, device, os.path.exists(os.path.join(path, "TIER")))


def _is_fatal(err: CacheFSError) -> bool:
    """Returns whether the tier is wrong, not its disk: the cache must not start without it."""
    return isinstance(err, InUse | BadConfig) and not isinstance(err.__cause__, OSError)
