"""The workers of a node's tiers: starts them, and starts another where a tier's directory is gone
or is another one (a disk that was unmounted, a folder that was deleted). Owned by the loop.

A tier that is out of service over its own directory comes back by itself (`worker.tier.probe`). A
worker whose place was taken goes on serving its handles, past its tier, and is closed with the
last.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cachefs.core.errors import BadConfig, CacheFSError
from cachefs.core.model import NamespaceId
from cachefs.core.services import MetadataService
from cachefs.core.tiers import MEMORY, TierSpec
from worker.cache.grants import TierView
from worker.cache.running import Running, directory_identity, is_fatal
from worker.cache.tier_source import TierSource
from worker.cache.tiers_status import Row, counted
from worker.cache.worker import Worker
from worker.fill.source import ConnectorFor, Source
from worker.runtime.clocks import Clocks
from worker.runtime.tasks import Tasks
from worker.runtime.threads import Threads, Wake
from worker.tier.config import WorkerConfig
from worker.tier.disk import Parts, Shared
from worker.tier.guarded_reads import DiskReader

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0  # between looks at tiers that are lost
LOOK_LIMIT_S: Final = 5.0
UNREAD_S: Final = 5.5  # a little longer than one read takes at most
POLL_S: Final = 0.01
MOST_RETIRED: Final = 16  # workers that only serve handles; the oldest is closed before its last
NUMBERS: Final = 256  # more than there are workers at once


class Keeper:
    """`running` is replaced, never changed: threads read it. `on_change`: a tier came, went, or is
    another directory; `on_started`: a worker is there."""

    def __init__(
        self,
        config: WorkerConfig,
        specs: Sequence[TierSpec],
        metadata: Callable[[NamespaceId], MetadataService],
        connector_for: ConnectorFor,
        clocks: Clocks,
        source: Source,
        shared: Shared,
    ) -> None:
        self.specs = specs
        self.clocks = clocks
        self.running: list[Running] = []
        self.on_change: Callable[[], None] = lambda: None
        self.on_started: Callable[[Running], None] = lambda running: None
        self.tasks = Tasks()
        self._config = config
        self._metadata = metadata
        self._connector_for = connector_for
        self._source = source
        self._shared = shared
        self.arrivals = shared.arrivals
        self._reader = DiskReader()
        self._looker = Threads("tier-look", len(specs), Wake(asyncio.get_running_loop()))
        self._one_look = asyncio.Lock()
        self._looks: dict[int, asyncio.Future[_Look]] = {}
        self._numbers: dict[int, Running] = {}
        self._retired: list[Running] = []
        self._causes: dict[int, str] = {}  # why a tier is lost
        self._devices: dict[int, int] = {}  # where a tier's directory was
        self._past: dict[str, Any] = {}  # what workers counted that are no more
        self._closed = False

    # ---- what there is ----

    def in_service(self) -> list[Running]:
        """Those whose disk answers, the fastest first; none may be there."""
        return [one for one in self.running if one.in_service]

    def is_numbered(self, number: int) -> bool:
        return number in self._numbers

    def numbered(self, number: int) -> Running:
        """Raises KeyError."""
        return self._numbers[number]

    def views(self) -> list[TierView]:
        known = {one.tier: one.view() for one in self.running}
        return [known.get(tier, TierView(tier, -1, False)) for tier in range(len(self.specs))]

    def rows(self) -> list[Row]:
        known = {one.tier: one.worker.status() for one in self.running}
        return [
            Row(tier, spec, known.get(tier), self._causes.get(tier, ""))
            for tier, spec in enumerate(self.specs)
        ]

    def past(self) -> dict[str, Any]:
        """What workers counted whose place was taken."""
        past = self._past
        for one in self._retired:
            past = counted(past, one.worker.status())
        return past

    def _of(self, tier: int) -> Running | None:
        return next((one for one in self.running if one.tier == tier), None)

    # ---- starting ----

    async def start(self) -> None:
        """See `Tiers.start`."""
        tiers = range(len(self.specs))
        found = await asyncio.gather(*map(self._start_one, tiers), return_exceptions=True)
        errors = {tier: one for tier, one in enumerate(found) if isinstance(one, BaseException)}
        for one in found:
            if isinstance(one, Running):
                self._take_in(one)
        for error in errors.values():
            if not self.running or not isinstance(error, CacheFSError) or is_fatal(error):
                await self.close()
                raise error
        for tier, error in errors.items():
            self._causes[tier] = str(error)
            log.error("tier %s is left out for now: %s", self.specs[tier].path, error)
        self.tasks.start(self._look_after())

    async def _start_one(self, tier: int) -> Running:
        spec = self.specs[tier]
        config = dataclasses.replace(
            self._config,
            cache_dir=spec.path,
            limit_bytes=spec.limit_bytes,
            scrub_bytes_per_s=spec.scrub_bytes_per_s,
        )
        worker = await Worker.start(
            config,
            self._metadata,
            self._connector_for,
            self.clocks,
            self._source_of(tier),
            self._shared,
        )
        try:
            parts = worker.inside.parts
            if spec.kind == MEMORY and not parts.tier.in_memory:
                raise BadConfig(
                    f"a mem tier is to be on a tmpfs, and this is on {parts.tier.kind or '?'}",
                    remedy="give a directory below /dev/shm, or write ssd: for a disk",
                    path=spec.path,
                )
            identity = await parts.disk.run(directory_identity, spec.path)
        except BaseException:
            await worker.close()
            raise
        return Running(tier, spec, worker, identity or (0, 0))

    def _source_of(self, tier: int) -> Source:
        if len(self.specs) == 1:
            return self._source
        others = functools.partial(self._others, tier)
        return TierSource(self._source, others, self._reader, self._bad_page)

    def _others(self, tier: int) -> list[Parts]:
        """From any thread."""
        return [one.parts for one in self.running if one.tier != tier]

    def _take_in(self, one: Running) -> None:
        one.number = next(number for number in range(NUMBERS) if number not in self._numbers)
        self._numbers[one.number] = one
        others = [other for other in self.running if other.tier != one.tier]
        self.running = sorted([*others, one], key=lambda other: other.tier)
        self._causes.pop(one.tier, None)
        self._devices[one.tier] = one.identity[0]
        one.worker.on_tiers = lambda: self.on_change()
        self.on_started(one)

    # ---- a page that is wrong ----

    def _bad_page(self, parts: Parts, key: bytes, page: int) -> None:
        """From a thread."""
        parts.wake.call(self._doubt, parts, key, page)

    def _doubt(self, parts: Parts, key: bytes, page: int) -> None:
        for one in self.running:
            if one.parts is parts:
                self.tasks.start(one.worker.serving.doubt(key, [page]))

    # ---- what is lost ----

    async def _look_after(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """One look at what is lost, and at what only serves handles."""
        async with self._one_look:
            # Not of those that were retired just now: other tiers may be about to read from them.
            over = [one for one in self._retired if not one.is_used]
            for old in over or self._retired[:-MOST_RETIRED]:
                await self._end(old)
            for tier in range(len(self.specs)):
                one = self._of(tier)
                if one is None or not one.in_service:
                    await self._try_again(tier, one)

    async def _try_again(self, tier: int, old: Running | None) -> None:
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
            return  # its own watch brings it back
        if device != self._devices.get(tier, device) and not has_header:
            self._causes[tier] = "another file system is there now, without this tier"
            return
        await self._replace(tier, old)

    async def _replace(self, tier: int, old: Running | None) -> None:
        memory = self._shared.memory
        in_memory = old is not None and old.parts.tier.in_memory
        limit_bytes = old.parts.ledger.limit_bytes if old is not None and in_memory else 0
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
        self.on_change()

    async def _end(self, one: Running) -> None:
        await self._until_unread([one])
        if one.is_used and len(self._retired) <= MOST_RETIRED:
            return  # by somebody who came meanwhile
        self._retired.remove(one)
        await one.worker.close()
        self._past = counted(self._past, one.worker.status())
        del self._numbers[one.number]
        parts, memory = one.parts, self._shared.memory
        memory.metadata_bytes -= parts.counted_metadata_bytes
        memory.tiers_bytes -= parts.counted_tier_bytes

    # ---- the end ----

    async def close(self) -> None:
        """Ends all workers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self.tasks.close()
        self._reader.close()
        await self._until_unread(self.running)
        ending = [one.worker.close() for one in (*self.running, *self._retired)]
        await asyncio.gather(*ending)
        self._looker.close(0.0)

    async def _until_unread(self, tiers: Sequence[Running]) -> None:
        """A tier is closed when no other one reads from it; one whose disk hangs is not waited
        for."""
        for _ in range(int(UNREAD_S / POLL_S)):
            if not any(one.parts.outside for one in tiers):
                return
            await asyncio.sleep(POLL_S)


class _Look(NamedTuple):
    """`identity` of the directory (st_dev, st_ino), None when it is gone; `device`: where it is or
    would be; `has_header`: a tier is there."""

    identity: tuple[int, int] | None
    device: int
    has_header: bool


def _look(path: str) -> _Look:
    """Raises OSError where there could be no directory. Blocks."""
    identity = directory_identity(path)
    device = identity[0] if identity else os.stat(os.path.dirname(path)).st_dev
    return _Look(identity, device, os.path.exists(os.path.join(path, "TIER")))
