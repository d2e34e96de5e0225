"""Moves of contents between the tiers of a node, as `worker.cache.tier_choice` decides. Owned by
the loop.

A move is a load of one tier from another (`worker.cache.tier_source`), then an eviction there.
Until that eviction the content is on a list of what is in two tiers, and read from where it was
complete first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import ContentId, NamespaceId, Origin
from worker.cache.load_requests import load_whole
from worker.cache.tier_choice import (
    PROMOTE_WINDOW_S,
    Held,
    Moved,
    Promote,
    Promotions,
    Used,
    excess,
)
from worker.fill.source import Purpose
from worker.tier.demotion import COPY_LIMIT_S

if TYPE_CHECKING:
    from cachefs.core.services import MetadataService
    from worker.cache.tier import Tier
    from worker.cache.tier_set import TierSet

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
COPIES_AT_ONCE: Final = 4  # of one demotion
MOST_DOUBLED: Final = 100_000  # more are found by the next sweep
SETTLED_PER_TICK: Final = 256
SWEEP_KEYS: Final = 2_000  # in one step of the loop
# What was copied below has left above by then, if it does.
EVICTED_WITHIN_S: Final = COPY_LIMIT_S + 15.0
FIRST_PAUSE_S: Final = 1.0  # before another try to evict what is open
LONGEST_PAUSE_S: Final = 60.0


@dataclass(slots=True)
class _Doubled:
    due_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S


class Moves:
    """The cache calls `used` at each open of what is complete."""

    def __init__(self, tiers: TierSet, metadata: Callable[[NamespaceId], MetadataService]) -> None:
        self._tiers = tiers
        self._metadata = metadata
        self._promotions = Promotions()
        self._doubled: dict[bytes, _Doubled] = {}
        self._sources: dict[bytes, Tier] = {}  # content on the move -> where it is complete
        self._sweep_due = False
        self._making_room: set[int] = set()  # tiers
        self._tasks = tiers.tasks
        tiers.on_started = self._connect
        tiers.subscribe(self._service_changed)

    def start(self) -> None:
        """Begins to work in the background; ends with the keeper's tasks."""
        if len(self._tiers.specs) > 1 or self._tiers.specs[0].high < 1.0:
            self._tasks.start(self._run())

    def _connect(self, one: Tier) -> None:
        self._sweep_due = True
        if one.index < len(self._tiers.specs) - 1:
            one.copy_before_eviction(functools.partial(self._demote, one))

    # ---- uses ----

    def used(self, key: bytes, one: Tier) -> None:
        """A content that this tier has was opened."""
        if one.index == 0:
            return
        event, now = Used(key, one.index), self._tiers.clocks.monotonic()
        for action in self._promotions.handle(event, now):
            self._tasks.start(self._promote(action, one))

    def used_name(self, name: str, one: Tier) -> None:
        """Notes the open of a file by its name; a string that is no name is ignored."""
        if one.index and len(name) == 2 * len(_EXAMPLE):
            self.used(bytes.fromhex(name), one)

    def source_of(self, key: bytes) -> Tier | None:
        """Returns the tier from which a content is being moved; None: it is not."""
        one = self._sources.get(key)
        return one if one in self._tiers.in_service() else None

    # ---- up ----

    async def _promote(self, action: Promote, one: Tier) -> None:
        done = False
        try:
            origin = await self._origin(action.key)
            target = await self._faster(one, origin.size) if origin is not None else None
            if origin is not None and target is not None:
                done = await self._copy(origin, one, target)
                await self._settle(action.key)
        except (CacheFSError, OSError) as err:
            log.warning("%s is not promoted: %s", action.key.hex(), err)
        finally:
            now = self._tiers.clocks.monotonic()
            self._promotions.handle(Moved(action.key, done), now)

    async def _origin(self, key: bytes) -> Origin | None:
        """Returns the origin of a content; None where the namespace is not attached, or the file
        has other contents."""
        content = ContentId.of_key(key)
        try:
            origin = await self._metadata(content.namespace).locate(content.ino)
        except CacheFSError:
            return None
        return origin if origin.content.key == key else None

    async def _faster(self, one: Tier, size: int) -> Tier | None:
        """Returns a faster tier that has room, or makes it from what was idle for long. Else
        contents that are used equally often would displace each other for ever."""
        for target in self._tiers.in_service():
            room = target.room()
            if target.index >= one.index or not room.writable or size > room.limit_bytes:
                continue
            if size <= room.free_bytes:
                return target
            await target.make_room_from_idle(size, PROMOTE_WINDOW_S)
            if size <= target.room().free_bytes:
                return target
        return None

    async def _copy(
        self, origin: Origin, one: Tier, target: Tier, *, settled_later_s: float = 0.0
    ) -> bool:
        """Loads a content into another tier. Returns whether that took it."""
        key = origin.content.key
        held = await one.held(key, origin.size)
        if held is None or not held.complete or key in self._sources:
            return False  # another task moves it, perhaps since a moment ago
        if one.contents.in_view(key):
            return False  # it stays in one tier with the other files of its view
        self._sources[key] = one
        self.doubled(key, settled_later_s)
        try:
            record = await one.record(key)
            with target.using():
                # Within its admission, as a reader's fill
                if await load_whole(target.loading.load, origin, purpose=Purpose.READ) is not None:
                    return False
            if record is not None and record.filled_s:
                target.expirer.moved(key, record.filled_s)
            await _hold_too(key, one, target)
        except (CacheFSError, OSError):
            return False
        finally:
            del self._sources[key]
        return True

    # ---- down ----

    async def _demote(self, one: Tier, keys: Sequence[bytes], need_bytes: int) -> None:
        """Copies contents that are about to be evicted, `need_bytes` of them, to a slower tier."""
        slots = asyncio.Semaphore(COPIES_AT_ONCE)

        async def copy(key: bytes) -> None:
            async with slots:
                await self._copy_below(one, key)

        wanted = []
        for key in keys:
            held = await one.held(key, 0) if need_bytes > 0 else None
            if held is not None and held.complete:
                wanted.append(key)
                need_bytes -= held.cached_bytes
        await asyncio.gather(*map(copy, wanted))

    async def _copy_below(self, one: Tier, key: bytes) -> None:
        origin = await self._origin(key)
        if origin is None:
            return
        for target in self._tiers.in_service():
            if target.index > one.index and target.room(origin).takes(origin.size):
                copied = await self._copy(origin, one, target, settled_later_s=EVICTED_WITHIN_S)
                if copied and key in one.order:
                    target.contents.use(key, one.order.last_use_s(key))
                return

    # ---- what is in two tiers ----

    def doubled(self, key: bytes, later_s: float = 0.0) -> None:
        """Notes that a content may be in two tiers. One of them is to evict it, `later_s` from now
        at the earliest."""
        if len(self._doubled) < MOST_DOUBLED:
            known = self._doubled.setdefault(key, _Doubled())
            known.due_s = max(known.due_s, self._tiers.clocks.monotonic() + later_s)
        else:
            self._sweep_due = True

    async def _settle(self, key: bytes) -> None:
        """The fastest that has all of it keeps it, else the one that has most."""
        if key in self._sources:
            return
        having = [one for one in self._tiers.in_service() if key in one.order]
        if len(having) > 1:
            found: dict[Tier, Held] = {}
            for one in having:
                held = await one.held(key, 0)
                if held is not None:
                    found[one] = held
            best = max(found, key=lambda one: _worth(one, found[one], key), default=None)
            for one in found:  # a tier that gave no answer keeps what it has
                if one is not best and best is not None:
                    await _hold_too(key, one, best)
                    await one.let_go(key)
            having = [one for one in having if key in one.order]
        doubled = self._doubled.get(key)
        if len(having) < 2:
            self._doubled.pop(key, None)
        elif doubled is not None:  # it is open
            doubled.due_s = self._tiers.clocks.monotonic() + doubled.pause_s
            doubled.pause_s = min(2 * doubled.pause_s, LONGEST_PAUSE_S)

    async def _sweep(self) -> None:
        """Finds what is in two tiers, after a start, and after a tier has returned."""
        self._sweep_due = False
        running = self._tiers.in_service()
        for number, one in enumerate(running):
            keys = [*one.order.keys()]
            for start in range(0, len(keys), SWEEP_KEYS):
                for key in keys[start : start + SWEEP_KEYS]:
                    if any(key in other.order for other in running[number + 1 :]):
                        self.doubled(key)
                await asyncio.sleep(0)

    # ---- in the background ----

    async def _run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick()

    async def tick(self) -> None:
        """Does what is due now."""
        running = self._tiers.in_service()
        if self._sweep_due and all(one.order_known for one in running):
            await self._sweep()
        now = self._tiers.clocks.monotonic()
        due = (key for key, doubled in self._doubled.items() if doubled.due_s <= now)
        for key in [*itertools.islice(due, SETTLED_PER_TICK)]:
            with contextlib.suppress(OSError):  # its disk hangs: later
                await self._settle(key)
        for one in running:
            self._look_at_watermarks(one)

    def _service_changed(self) -> None:
        """Plans a sweep: a tier that returned may have what others fetched while it was lost."""
        self._sweep_due = True

    def _look_at_watermarks(self, one: Tier) -> None:
        if one.context.config.admission != "always" or one.index in self._making_room:
            return
        excess_bytes = one.excess_bytes(excess)
        if excess_bytes > 0:
            self._making_room.add(one.index)
            task = one.make_room_ahead(excess_bytes)
            task.add_done_callback(lambda _: self._making_room.discard(one.index))


async def _hold_too(key: bytes, one: Tier, target: Tier) -> None:
    """Holds in `target` what `one` holds. Raises OSError."""
    hold = await one.hold_of(key)
    if hold is not None:
        await target.hold(key, hold)


def _worth(one: Tier, held: Held, key: bytes) -> tuple[bool, bool, int, int]:
    """The tier in which a view holds the content keeps it."""
    in_view = one.contents.in_view(key)
    return in_view, held.complete, 0 if held.complete else held.cached_bytes, -held.tier


_EXAMPLE: Final = ContentId(NamespaceId(bytes(16)), 1, 0, 0).key
