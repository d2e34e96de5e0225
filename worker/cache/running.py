"""One worker over a tier's directory, from its start to its end, as `Tiers` knows it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cachefs.core.errors import BadConfig, CacheFSError, InUse
from cachefs.core.model import Origin
from cachefs.core.tiers import TierSpec
from worker.cache.grants import TierView
from worker.cache.tier_choice import Held, Room
from worker.cache.worker import Worker
from worker.store.holds import Hold
from worker.store.records import FileRecord
from worker.tier.disk import Parts
from worker.tier.ledger import allocation

PROMISE_S: Final = 5.0  # between a content's being placed and its being opened


@dataclass(eq=False, slots=True)
class Running:
    """`number` is in the handles of its files; `users`: handles, and calls that may open one.
    `identity`: (st_dev, st_ino) of its directory."""

    tier: int
    spec: TierSpec
    worker: Worker
    identity: tuple[int, int]
    number: int = -1
    users: int = 0
    promised: dict[bytes, _Promise] = field(default_factory=dict)  # by content key

    @property
    def parts(self) -> Parts:
        return self.worker.inside.parts

    @property
    def in_service(self) -> bool:
        return self.parts.health.in_service

    def view(self) -> TierView:
        losses = self.parts.health.losses
        return TierView(self.tier, self.parts.tier.pub_fd, self.in_service, self.number, losses)

    @property
    def is_used(self) -> bool:
        """Has anybody a handle of it, or waits for one?"""
        return self.users > 0 or len(self.worker.inside.catalog) > 0

    @contextlib.contextmanager
    def using(self) -> Iterator[Worker]:
        """Its worker, which is not closed meanwhile."""
        self.users += 1
        try:
            yield self.worker
        finally:
            self.users -= 1

    async def unless_left(self, work: Coroutine[Any, Any, object]) -> None:
        """Waits for something at its disk, as long as that answers. It goes on in any case."""
        await self.parts.unless_left(self.parts.tasks.start(work), None)

    # ---- what it has ----

    def is_live(self, key: bytes) -> bool:
        """Is it open here, or on its way?"""
        entry = self.worker.inside.catalog.live(key)
        return entry is not None and not entry.detached

    def may_have(self, key: bytes) -> bool:
        """False: it has nothing of that content, surely."""
        return not self.worker.inside.catalog.is_absent(key)

    async def held(self, key: bytes, size: int, *, for_load: bool = False) -> Held | None:
        """What its index says; None for nothing, or where its disk does not say."""
        try:
            record: FileRecord | None = await self.parts.ask_disk(self.parts.tier.index.get, key)
        except OSError as err:
            self.worker.inside.catalog.disk_fault(err)
            return None
        if record is None:
            return None
        missing_bytes = max(0, allocation(size) - record.allocated_bytes)
        takes_more = self._makes_room(_Wanted(key, size), for_load=for_load)(missing_bytes)
        return Held(self.tier, record.complete, record.allocated_bytes, takes_more)

    async def record(self, key: bytes) -> FileRecord | None:
        """As its index says it; None: it does not."""
        try:
            return await self.parts.ask_disk(self.parts.tier.index.get, key)
        except OSError:
            return None

    async def hold(self, key: bytes) -> Hold | None:
        """How long it is held here."""
        until_s, though_read = self.parts.order.held(key)
        record = await self.record(key) if until_s else None
        return Hold(record.held_until_s, though_read) if record and record.held_until_s else None

    # ---- what it may take ----

    def room(self, origin: Origin | None = None, *, for_load: bool = False) -> Room:
        """As a new content sees it: what this node owns may take the place of what it does not,
        and what is loaded that of everything that may go at all."""
        parts, ledger = self.parts, self.parts.ledger
        wanted = _Wanted(origin.content.key, origin.size) if origin is not None else None
        return Room(
            in_service=parts.health.in_service,
            writable=parts.health.writable(parts.clocks.monotonic()),
            limit_bytes=ledger.limit_bytes - ledger.headroom_bytes - ledger.scratch_floor_bytes,
            free_bytes=ledger.free_for_files - self._promised_bytes(),
            makes_room=self._makes_room(wanted, for_load=for_load),
        )

    def _makes_room(self, wanted: _Wanted | None, *, for_load: bool) -> Callable[[int], bool]:
        space = self.worker.inside.space
        return space.may_fit_load if for_load else functools.partial(space.may_fit, entry=wanted)

    def promise(self, key: bytes, size: int) -> None:
        """A large content comes here: its room is kept from others of which nothing is here yet."""
        self._promised_bytes()
        self.promised[key] = _Promise(size, self.parts.clocks.monotonic())

    def _promised_bytes(self) -> int:
        """What large contents on their way will still take. Those that nobody fetches any more are
        forgotten."""
        promised = 0
        for key, promise in [*self.promised.items()]:
            entry = self.worker.inside.catalog.live(key)
            if entry is not None and not entry.detached and not entry.complete:
                promised += max(0, allocation(promise.size) - entry.allocated_bytes)
            elif entry is None and self._is_on_its_way(key, promise):
                promised += allocation(promise.size)
            else:
                del self.promised[key]
        return promised

    def _is_on_its_way(self, key: bytes, promise: _Promise) -> bool:
        if key in self.parts.order:
            return False  # it was here, and nobody uses it now
        return self.parts.clocks.monotonic() - promise.made_at_s < PROMISE_S


class _Wanted(NamedTuple):
    key: bytes
    size: int


class _Promise(NamedTuple):
    size: int
    made_at_s: float


def directory_identity(path: str) -> tuple[int, int] | None:
    """(st_dev, st_ino) of a directory; None when it is gone. Blocks."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def is_fatal(err: CacheFSError) -> bool:
    """Is the tier wrong, and not its disk? Then the worker must not start without it."""
    return isinstance(err, InUse | BadConfig) and not isinstance(err.__cause__, OSError)
