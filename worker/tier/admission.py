"""Room for fills: admission, and eviction by the master's permission. Owned by the loop.

One eviction runs at a time. Fills that need room wait for it, but not for slow copies to another
tier (`worker.tier.demotion`). Without a valid permission of the master nothing is evicted. Live
contents (open in the worker, or being filled) are skipped; the kernel's lease shows what a client
has open.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from cachefs.core.errors import Interrupted, NoSpace, Unavailable
from cachefs.core.jobs import FullQuota
from cachefs.core.policies import AUTO, NEVER, NO_RULE, Rule
from worker.runtime.tasks import within
from worker.store.removal import Evicted, evict
from worker.tier.admission_rule import Verdict, judge
from worker.tier.demotion import Demotion
from worker.tier.eviction_order import MOST_SKIPPED, NEVER_S
from worker.tier.over_quota import Named, OverQuota

if TYPE_CHECKING:
    from worker.tier.catalog import Catalog
    from worker.tier.contents import Contents
    from worker.tier.context import TierContext
    from worker.tier.disk import TierDisk
    from worker.tier.permission import EvictionPermission
    from worker.tier.unlinked import UnlinkedOpenFiles

log = logging.getLogger(__name__)

BATCH_FILES: Final = 64
MOST_ROUNDS: Final = 64  # of one eviction, and
MOST_ROUNDS_S: Final = 0.4  # then no further round begins: others wait for the lock
ORDER_WAIT_S: Final = 10.0  # then who needs room does without, within its own deadline
NO_LIMIT_BYTES: Final = 1 << 62
PAUSE_S: Final = 1.0  # after an eviction that found nothing
MOST_PAUSE_S: Final = 60.0  # between looks at what may go of a cache above its limit
RELEASE_S: Final = 5.0  # between looks at holds that have ended
MOST_ASKED: Final = 1000  # contents in one request for permission
THOROUGH_S: Final = 20.0  # for a load's eviction, which looks at everything


class NoRoom(NoSpace):
    """A load does not fit: what is cached is protected, held or in use."""


class SpaceRequest(Protocol):
    """A content that wants room: an entry, or one that is not here yet."""

    @property
    def key(self) -> bytes: ...
    @property
    def size(self) -> int: ...


class Admission:
    """`reserve` and `release` change the ledger; `order_loaded` is set when the eviction order
    knows what an earlier process cached."""

    def __init__(
        self,
        context: TierContext,
        disk: TierDisk,
        contents: Contents,
        catalog: Catalog,
        permission: EvictionPermission,
        leftovers: UnlinkedOpenFiles,
    ) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._catalog = catalog
        self._leftovers = leftovers
        self._one_at_a_time = asyncio.Lock()
        self._one_load = asyncio.Lock()  # of loads that make room thoroughly
        self._named: list[tuple[bytes, int]] = []  # candidates left over, and their last use
        self._oldest_use_s = 0
        self._oldest_known_at_s = float("-inf")
        self._nothing_until_s = float("-inf")
        self._nothing_for_loads_until_s = float("-inf")
        self._released_at_s = float("-inf")
        self._shrink_pause_s = PAUSE_S
        self._shrink_at_s = float("-inf")
        self._permission = permission
        self._unanswered = 0  # requests for permission without an answer
        self._named_quotas = Named()
        self.demotion = Demotion(context, contents)
        self.order_loaded = asyncio.Event()

    async def reserve(self, size_bytes: int, entry: SpaceRequest | None = None) -> bool:
        """Promises room in the cache (for this entry); False when admission refuses it, nothing can
        go, or the disk is degraded. Cancelled: nothing is reserved."""
        if not self._is_writable():
            return False
        if self._contents.ledger.over_limit_bytes:
            return self._refuse()  # a reader does not wait until the cache has shrunk
        full = self.full_quota(size_bytes, entry)
        if full is not None:
            return self._refuse_for(full)
        verdict = self._judge(size_bytes, entry)
        if verdict is Verdict.ADMIT:
            return self._take(size_bytes, entry)
        if not self._is_copy(entry, NEVER):
            self._contents.guard.want_room(replaces=verdict is Verdict.MAKE_ROOM)
        if verdict is Verdict.REFUSE or self._context.monotonic() < self._nothing_until_s:
            return self._refuse()
        if not await self._knows_order():
            return self._refuse()
        async with self._one_at_a_time:
            writable = self._is_writable()
            return writable and await self._reserve_by_evicting(size_bytes, entry)

    def reserve_nowait(
        self, size_bytes: int, entry: SpaceRequest | None = None, *, from_floor: bool = False
    ) -> bool:
        """Reserves room if there is some. Returns False where admission must decide or make
        room. `from_floor`: see `Ledger.reserve`."""
        if not self._is_writable():
            return False
        if self.full_quota(size_bytes, entry) is not None or self._is_copy(entry, NEVER):
            return False
        return self._take(size_bytes, entry, from_floor=from_floor)

    async def reserve_for_load(self, size_bytes: int, entry: SpaceRequest) -> None:
        """Reserves room regardless of admission: evicts everything that is not protected, held or
        in use. Raises NoRoom, OverQuota, and Unavailable where the disk is degraded or the master
        does not answer. Cancelled: nothing is reserved."""
        self._check_writable()
        full = self.full_quota(size_bytes, entry)
        if full is not None:
            raise OverQuota(full)
        if self._take(size_bytes, entry):
            return
        if not await self._knows_order():
            raise Unavailable("the index of the cache is still being read")
        async with self._one_load:
            self._check_writable()
            await self._reserve_for_load(size_bytes, entry)

    async def _knows_order(self) -> bool:
        """Waits until the eviction order is loaded, for `ORDER_WAIT_S`. Returns whether it is."""
        with contextlib.suppress(TimeoutError):
            await within(self.order_loaded.wait(), ORDER_WAIT_S)
        return self.order_loaded.is_set()

    def _is_writable(self) -> bool:
        return self._disk.health.writable(self._context.monotonic())

    def _check_writable(self) -> None:
        if not self._is_writable():
            raise Unavailable("the cache disk takes nothing for now")

    async def _reserve_for_load(self, size_bytes: int, entry: SpaceRequest) -> None:
        ledger, monotonic = self._contents.ledger, self._context.clocks.monotonic
        self._leftovers.check(urgent=True)
        unanswered = self._unanswered
        may_help = size_bytes <= ledger.free_for_files + ledger.cached_bytes
        if may_help and monotonic() >= self._nothing_for_loads_until_s:
            until_s = monotonic() + THOROUGH_S
            await self._make_room_thoroughly(size_bytes, until_s)
            while size_bytes > ledger.free_for_files and await self._contents.guard.give_way():
                await self._make_room_thoroughly(size_bytes, until_s)
        if self._take(size_bytes, entry):
            return
        if self._unanswered != unanswered:
            raise Unavailable("the master does not say what may be evicted")
        self._nothing_for_loads_until_s = monotonic() + PAUSE_S
        self._refuse()
        raise NoRoom("nothing more can go for it")

    def full_quota(self, size_bytes: int, entry: SpaceRequest | None) -> FullQuota | None:
        """Returns the quota that refuses these bytes of a content; None: no quota does."""
        bounds, charges = self._rule(entry).quotas, self._contents.charges
        path = charges.refuses(bounds, size_bytes) if bounds else None
        if path is None:
            return None
        quota_bytes = dict(bounds)[path]
        return FullQuota(path, quota_bytes, *charges.use(path, quota_bytes))

    def _take(
        self, size_bytes: int, entry: SpaceRequest | None, *, from_floor: bool = False
    ) -> bool:
        key, quotas = None if entry is None else entry.key, self._rule(entry).quotas
        return self._contents.reserve(key, size_bytes, quotas, from_floor=from_floor)

    def release(self, size_bytes: int, entry: SpaceRequest | None = None) -> None:
        """Takes a promise (for this entry) back."""
        self._contents.unreserve(None if entry is None else entry.key, size_bytes)

    def may_fit(self, size_bytes: int, entry: SpaceRequest | None = None) -> bool:
        """Returns whether `reserve` would try to admit the bytes now. Promises nothing."""
        if not self._is_writable() or self._contents.ledger.over_limit_bytes:
            return False
        return self._judge(size_bytes, entry) is not Verdict.REFUSE

    def may_fit_load(self, size_bytes: int) -> bool:
        """Returns whether `reserve_for_load` would try it now."""
        if not self._is_writable():
            return False
        ledger = self._contents.ledger
        return size_bytes <= ledger.free_for_files + ledger.cached_bytes

    async def _reserve_by_evicting(self, size_bytes: int, entry: SpaceRequest | None) -> bool:
        self._leftovers.check(urgent=True)
        has_tried = False
        for may_take_copies in (True, False):  # too few copies are no reason not to look further
            verdict = self._judge(size_bytes, entry, may_take_copies=may_take_copies)
            if verdict in (Verdict.ADMIT, Verdict.REFUSE):
                break
            if self._context.monotonic() < self._nothing_until_s:
                return self._refuse()
            await self._make_room_by(verdict, size_bytes)
            has_tried = True
            if verdict is not Verdict.MAKE_ROOM_FROM_COPIES:
                break
        if self._take(size_bytes, entry):
            return True
        if has_tried:
            self._nothing_until_s = self._context.monotonic() + PAUSE_S
        return self._refuse()

    async def _make_room_by(self, verdict: Verdict, size_bytes: int) -> None:
        from_idle = verdict is Verdict.MAKE_ROOM_FROM_IDLE
        idle_s = self._context.config.idle_after_s if from_idle else None
        from_copies = verdict is Verdict.MAKE_ROOM_FROM_COPIES
        await self._make_room(size_bytes, idle_s, only_copies=from_copies)

    def _refuse_for(self, full: FullQuota) -> bool:
        if self._named_quotas.is_news(full, self._context.monotonic()):
            log.info("a file is not cached: %s", OverQuota(full).one_line())
        return self._refuse()

    def _refuse(self) -> bool:
        self._context.counters.refused += 1
        return False

    def _judge(
        self, size_bytes: int, entry: SpaceRequest | None, *, may_take_copies: bool = True
    ) -> Verdict:
        ledger, config = self._contents.ledger, self._context.config
        now_s = self._context.wall()
        if self.full_quota(size_bytes, entry) is not None or self._is_copy(entry, NEVER):
            return Verdict.REFUSE
        if self._oldest_use_s + config.idle_after_s <= now_s:
            self._look_for_the_oldest()
        return judge(
            self._admission(entry),
            size_bytes=size_bytes,
            free_bytes=ledger.free_for_files,
            cached_bytes=ledger.cached_bytes,
            oldest_use_s=self._oldest_use_s,
            idle_after_s=config.idle_after_s,
            now_s=now_s,
            takes_copies=lambda: (
                may_take_copies and entry is not None and self._takes_copies(entry)
            ),
        )

    def _admission(self, wanted: SpaceRequest | None) -> str:
        """Returns the admission by the content's policy, else the worker's. Copies of what other
        workers own replace nothing in use, unless a policy permits it."""
        admission = self._rule(wanted).admission or self._context.config.admission
        return "fill" if admission != "fill" and self._is_copy(wanted, AUTO) else admission

    def _is_copy(self, wanted: SpaceRequest | None, local_copy: str) -> bool:
        """Returns whether it is a copy of what other workers own whose policy permits that."""
        rule, is_owned = self._rule(wanted), self._contents.is_owned
        if wanted is None or is_owned is None or rule.local_copy != local_copy:
            return False
        return not is_owned(wanted.key, wanted.size, rule.owners)

    def _rule(self, wanted: SpaceRequest | None) -> Rule:
        entry = None if wanted is None else self._catalog.live(wanted.key)
        return NO_RULE if entry is None else entry.origin.rule

    def _takes_copies(self, entry: SpaceRequest) -> bool:
        if self._contents.is_owned is None or not self._contents.order.copy_count:
            return False
        return self._contents.is_owned(entry.key, entry.size, self._rule(entry).owners)

    def _look_for_the_oldest(self) -> None:
        """Returns a lower bound of the last uses. Last uses only grow and new contents are used
        now, so an old answer stays a lower bound, but for contents that an unused view has released
        since: those count from the next look on."""
        now = self._context.monotonic()
        if self.order_loaded.is_set() and now - self._oldest_known_at_s >= PAUSE_S:
            self._oldest_use_s = min(self._contents.order.oldest_use_s(), self._context.wall_s())
            self._oldest_known_at_s = now

    # ---- eviction ----

    async def make_room_ahead(self, size_bytes: int) -> None:
        """Evicts ahead of demand, within the admission policy."""
        async with self._one_at_a_time:
            if self.demotion.copying:
                return  # what is in flight to a slower tier makes room soon
            if self.order_loaded.is_set() and self._is_writable():
                config = self._context.config
                idle_s = None if config.admission == "always" else config.idle_after_s
                await self._make_room(self._contents.ledger.free_for_files + size_bytes, idle_s)

    async def shrink(self) -> None:
        """Shrinks a cache that exceeds its limit, since the limit is lower than the former
        process's, or that takes room which readers need for segments. Evicts regardless of
        admission. Called periodically; where nothing may be evicted it retries after growing
        pauses."""
        now = self._context.monotonic()
        before = self._excess_bytes
        if not before:
            self._shrink_pause_s = PAUSE_S
            return
        if (
            not self.order_loaded.is_set()
            or not self._disk.health.in_service
            or now < self._shrink_at_s
        ):
            return
        async with self._one_at_a_time:
            await self._make_room(0, None)
        progress = self._excess_bytes < before
        self._shrink_pause_s = PAUSE_S if progress else min(2 * self._shrink_pause_s, MOST_PAUSE_S)
        self._shrink_at_s = self._context.monotonic() + (0.0 if progress else self._shrink_pause_s)

    @property
    def _excess_bytes(self) -> int:
        """The bytes that files must return."""
        ledger = self._contents.ledger
        lent_bytes = 0 if self._contents.lends_floor else ledger.lent_floor_bytes
        return max(ledger.over_limit_bytes, lent_bytes)

    async def make_room_from_idle(self, size_bytes: int, idle_s: float) -> bool:
        """Returns whether there is room, or contents unused for `idle_s` can be evicted for it."""
        async with self._one_at_a_time:
            if self.order_loaded.is_set():
                await self._make_room(size_bytes, idle_s)
        return size_bytes <= self._contents.ledger.free_for_files

    async def let_go(self, keys: Sequence[bytes]) -> None:
        """Evicts what another tier of this node has too; what is in use stays."""
        async with self._one_at_a_time:
            for start in range(0, len(keys), BATCH_FILES):
                batch = self._not_live(keys[start : start + BATCH_FILES])
                await self._evict(batch, NO_LIMIT_BYTES, float("inf"), "moved")

    async def _make_room(
        self, need_bytes: int, idle_s: float | None, *, only_copies: bool = False
    ) -> None:
        """Makes room. `idle_s`: only from contents unused for this time; None: from any, or only
        from copies of what other workers own."""
        idle_before_s = NEVER_S if idle_s is None else int(self._context.wall() - idle_s)
        reason = "copy" if only_copies else "space" if idle_s is None else "idle"
        self._release_held()
        until_s = self._context.monotonic() + MOST_ROUNDS_S
        for _ in range(MOST_ROUNDS):
            short_bytes = need_bytes - self._contents.ledger.free_for_files
            if short_bytes <= 0 or not self._disk.health.in_service:
                return
            if only_copies:
                keys = self._contents.order.copies(BATCH_FILES)
            else:
                keys = self._candidates(idle_before_s)
            if not keys or self._context.monotonic() > until_s:
                return
            await self._evict_permitted(keys, short_bytes, reason)

    async def _make_room_thoroughly(self, need_bytes: int, until_s: float) -> None:
        """Makes room from any content: examines each once, until then (monotonic) at most."""
        self._release_held()
        batch = BATCH_FILES
        most_looks = 2 * len(self._contents.order) + 2 * MOST_SKIPPED  # each, also past its mark
        while most_looks > 0 and self._context.monotonic() < until_s:
            async with self._one_at_a_time:  # readers need room, too, between two batches
                short_bytes = need_bytes - self._contents.ledger.free_for_files
                if short_bytes <= 0 or not self._disk.health.in_service:
                    return
                keys = self._candidates(NEVER_S, batch)
                most_looks -= len(keys) or MOST_SKIPPED
                going = await self._evict_permitted(keys, short_bytes, "space") if keys else 0
            if not keys:
                await asyncio.sleep(0)
            elif 4 * going < len(keys):
                batch = min(2 * batch, MOST_ASKED)

    async def _evict_permitted(self, keys: Sequence[bytes], short_bytes: int, reason: str) -> int:
        """Evicts this much of these and a little more, as far as permitted; returns the number of
        permitted ones."""
        allowed, until_s = await self._permitted(self._not_live(keys))
        self._contents.defer([*set(keys) - set(allowed)])
        short_bytes += min(self._contents.ledger.limit_bytes // 128, 32 << 20)
        then = functools.partial(self._evict_copied, short_bytes=short_bytes, reason=reason)
        await self.demotion.offer(self._not_live(allowed), short_bytes, then)
        going = [key for key in self._not_live(allowed) if key not in self.demotion.copying]
        await self._evict(going, short_bytes, until_s, reason)
        return len(allowed)

    async def _evict_copied(
        self, copied: Mapping[bytes, int], short_bytes: int, reason: str
    ) -> None:
        """Evicts contents that were copied to a slower tier, except those used or opened since."""
        order = self._contents.order
        async with self._one_at_a_time:
            same = [key for key, use_s in copied.items() if self._contents.last_use_s(key) == use_s]
            known = [key for key in same if key in order]
            allowed, until_s = await self._permitted(known)
            await self._evict(self._not_live(allowed), short_bytes, until_s, reason)

    async def _permitted(self, keys: Sequence[bytes]) -> tuple[list[bytes], float]:
        """Returns the evictable contents, in order, and the end of the permission (see there)."""
        permitted = await self._permission.request(keys)
        self._unanswered += not permitted.is_answered
        return permitted.allowed, permitted.until_s

    def _release_held(self) -> None:
        """Releases contents whose hold has expired."""
        now = self._context.monotonic()
        if self._contents.order.first_release_s <= now and now - self._released_at_s >= RELEASE_S:
            self._released_at_s = now
            self._contents.release_due(now, self._context.wall_s())

    def _candidates(self, idle_before_s: int, count: int = BATCH_FILES) -> list[bytes]:
        """First those that were named before and not needed: the order's hand has passed them."""
        order = self._contents.order
        named, self._named = self._named, []
        keys = [
            key
            for key, use_s in named
            if key in order and order.last_use_s(key) == use_s <= idle_before_s
        ]
        fresh = order.candidates(count - len(keys), idle_before_s)
        return [*keys, *(key for key in fresh if key not in keys)]

    def _not_live(self, keys: Sequence[bytes]) -> list[bytes]:
        """Returns the contents that are neither live nor in a view."""
        in_view = self._contents.in_view
        return [key for key in keys if not (self._catalog.is_live(key) or in_view(key))]

    async def _evict(self, keys: list[bytes], need_bytes: int, until_s: float, reason: str) -> None:
        """Evicts nothing of a tier out of service: its published files may be withdrawn now.
        Cancelled: the eviction continues and is accounted for."""
        if not keys or not self._disk.health.in_service:
            return
        lasting = self._context.clocks.lasting
        names = [key.hex() for key in keys]
        call = functools.partial(
            evict,
            self._disk.directory,
            self._disk.writer,
            names,
            need_bytes,
            lambda: lasting() < until_s,
        )
        fence = contextlib.ExitStack()
        fence.enter_context(self._catalog.removing(keys))
        await asyncio.shield(
            self._context.tasks.start(self._evict_fenced(keys, call, reason, fence))
        )

    async def _evict_fenced(
        self,
        keys: list[bytes],
        call: Callable[[], Evicted],
        reason: str,
        fence: contextlib.ExitStack,
    ) -> None:
        with fence:
            try:
                result = await self._disk.threads.run(call)
            except Interrupted:  # the worker is closing
                return
            except OSError as err:
                self._catalog.disk_fault(err)
                return
        self._account(result, reason)
        self._named = [
            (key, self._contents.order.last_use_s(key))
            for key in keys
            if key.hex() not in result.busy and key in self._contents.order
        ]

    def _account(self, result: Evicted, reason: str) -> None:
        for name, size_bytes in result.gone.items():
            self._contents.evicted(bytes.fromhex(name), size_bytes)
            self._context.counters.evicted_bytes += size_bytes
        self._contents.defer([bytes.fromhex(name) for name in result.busy])
        self._context.counters.evicted_files[reason] += len(result.gone)
        self._context.counters.evicted_files["busy"] += len(result.busy)
        self._contents.room_changed.notify()
