"""The master's policies for what is cached: frees contents that are over their time to live or a
quota, and learns how many nodes own them. Owned by the loop.

Once a second it requests the rules of what was just filled, many in one request. After a start, and
whenever policies changed, it requests those of everything that is cached. Nothing is freed without
the master's permission, as in an eviction: what is pinned by now stays. It waits for a master that
gives no answer. Handles of open files read on from the unlinked file.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from cachefs.core.errors import CacheFSError
from cachefs.core.model import ContentId, NamespaceId
from cachefs.core.policies import Rule
from cachefs.core.services import PolicyService
from worker.cache.expiry import Expiry
from worker.fill.segments import Segments
from worker.runtime.tasks import within
from worker.store.changes import TouchFile
from worker.store.records import FileRecord
from worker.tier.catalog import Catalog
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.disk import TierDisk
from worker.tier.maintenance import Housekeeping
from worker.tier.permission import EvictionPermission

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
ASKED_AT_ONCE: Final = 500
FREED_AT_ONCE: Final = 200
MOST_FREED_PER_TICK: Final = 20_000
MOST_FRESH: Final = 50_000  # fills between two ticks; with more, all rules are requested again
ANSWER_S: Final = 5.0
RETRY_S: Final = 3.0
LONGEST_REST_S: Final = 60.0


class _Rest(NamedTuple):
    """The time for which an exceeded quota is left alone."""

    until_s: float  # monotonic
    pause_s: float


class Expirer:
    """`run` is the one task; `tick` can be called alone."""

    def __init__(
        self,
        context: TierContext,
        disk: TierDisk,
        contents: Contents,
        catalog: Catalog,
        permission: EvictionPermission,
        segments: Segments,
        housekeeping: Housekeeping,
    ) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._catalog = catalog
        self._permission = permission
        self._segments = segments
        self._housekeeping = housekeeping
        self._expiry = Expiry()
        self._charges = contents.charges
        self._fresh: dict[bytes, float] = {}  # key -> when it was filled
        self._versions: dict[NamespaceId, int] = {}  # of the policies that are known here
        self._again: set[NamespaceId] = set()  # not all of whose policies are known here
        self._again_at_s = 0.0
        self._knows_namespaces = False
        self._one_at_a_time = asyncio.Lock()
        self._other_owners = False  # than was known here
        self._rests: dict[bytes, _Rest] = {}  # by path of the quota
        self.freed_files = 0
        catalog.on_recorded = self.filled

    def __len__(self) -> int:
        """Contents with a time to live."""
        return len(self._expiry)

    def filled(self, key: bytes) -> None:
        """Notes that pages of a content were just recorded."""
        if len(self._fresh) < MOST_FRESH:
            self._fresh[key] = self._context.wall()
        else:
            self._again.add(key_namespace(key))

    def moved(self, key: bytes, filled_s: int) -> None:
        """Notes that a content was moved here from another tier, where it was filled at
        `filled_s`."""
        self.filled(key)
        if key in self._fresh:
            self._fresh[key] = float(filled_s)
        self._disk.writer.submit([TouchFile(key, filled_s=filled_s)], _ignore)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self.tick()
            await asyncio.sleep(TICK_S)

    async def tick(self) -> None:
        """Does what is due now."""
        async with self._one_at_a_time:
            if not self._disk.health.in_service or not self._contents.order_known:
                return
            try:
                await self._ask()
                await self._look_at_owners()
            except OSError as err:
                return self._catalog.disk_fault(err)
            await self._free_what_is_due()
            await self._free_all_excess()

    async def _ask(self) -> None:
        if not self._knows_namespaces:
            async for batch in self._housekeeping.records():
                self._again |= {key_namespace(key) for key, _ in batch}
            self._knows_namespaces = True
        await self._ask_about_fresh()
        await self._ask_about_changed()

    async def _free_what_is_due(self) -> None:
        for _ in range(0, MOST_FREED_PER_TICK, FREED_AT_ONCE):
            due = self._expiry.due(self._context.wall(), FREED_AT_ONCE)
            if not due:
                return
            await self._free(due)

    # ---- what the policies say -------------------------------------------------------------------

    def _service(self, namespace: NamespaceId) -> PolicyService | None:
        try:
            service = self._context.metadata(namespace)
        except CacheFSError:
            return None
        return service if isinstance(service, PolicyService) else None

    def _version(self, namespace: NamespaceId) -> int:
        service = self._service(namespace)
        return -1 if service is None else service.policy_version

    async def _ask_about_fresh(self) -> None:
        over = [key for key in self._charges.promised() if not self._catalog.is_live(key)]
        fresh, self._fresh = self._fresh, {}
        try:
            for namespace, filled in _by_namespace(fresh).items():
                self._versions.setdefault(namespace, self._version(namespace))
                if not await self._learn(namespace, filled):
                    self._again.add(namespace)
        except OSError:
            self._fresh = fresh | self._fresh  # the rest was not asked about
            raise
        self._contents.settle_charges(over)

    async def _ask_about_changed(self) -> None:
        """About everything of the namespaces whose policies changed, or that had no answer."""
        versions = {ns: self._version(ns) for ns in {*self._versions, *self._again}}
        self._again |= {ns for ns, version in versions.items() if version != self._versions.get(ns)}
        now = self._context.monotonic()
        if not self._again or now < self._again_at_s:
            return
        wanted, self._again = self._again, set()
        try:
            await self._ask_about_all_of(wanted)
        except BaseException:
            self._again |= wanted
            raise
        self._versions |= {ns: versions[ns] for ns in wanted - self._again}
        self._again_at_s = now + RETRY_S if self._again else now
        self._rests.clear()  # a pin may have gone

    async def _ask_about_all_of(self, wanted: set[NamespaceId]) -> None:
        """Requests the rules of everything in these namespaces. Those that gave no answer are in
        `_again` then. Raises OSError."""
        async for batch in self._housekeeping.records():
            if not wanted - self._again:
                return  # no master answers
            filled = {key: float(_filled_s(record)) for key, record in batch}
            sizes = {key: record.allocated_bytes for key, record in batch}
            for namespace, some in _by_namespace(filled).items():
                asks = namespace in wanted and namespace not in self._again
                if asks and not await self._learn(namespace, some, sizes):
                    self._again.add(namespace)

    async def _learn(
        self,
        namespace: NamespaceId,
        filled: dict[bytes, float],
        sizes: dict[bytes, int] | None = None,
    ) -> bool:
        """Requests the rules of contents that were filled at these times. Returns whether there was
        an answer."""
        keys = [*filled]
        for start in range(0, len(keys), ASKED_AT_ONCE):
            part = keys[start : start + ASKED_AT_ONCE]
            try:
                rules = await self._rules(namespace, [ContentId.of_key(key) for key in part])
            except (CacheFSError, TimeoutError) as err:
                log.debug("no policies from the master: %s", err)
                return False
            now_s = self._context.wall()
            for key, rule in zip(part, rules, strict=True):
                self._heed(key, rule)
                ttl_s = -1.0 if rule.pinned else rule.ttl_s
                self._expiry.put(key, filled[key], ttl_s, now_s)
            await self._charge(part, rules, sizes or {})
        return True

    def _heed(self, key: bytes, rule: Rule) -> None:
        """Applies a rule to what is cached or open."""
        entry = self._catalog.live(key)
        if entry is not None and entry.origin.rule != rule:
            entry.origin = msgspec.structs.replace(entry.origin, rule=rule)
        self._other_owners |= self._contents.apply_rule(key, rule)

    async def _look_at_owners(self) -> None:
        """Copies of what this node no longer owns go first, and others get what they own now.
        Raises OSError."""
        if self._other_owners:
            self._other_owners = False
            await self._housekeeping.ask_owners()
            self._contents.on_owners_changed()

    async def _charge(
        self, keys: Sequence[bytes], rules: Sequence[Rule], sizes: dict[bytes, int]
    ) -> None:
        """Counts what is cached of these against their quotas. Raises OSError."""
        index = self._disk.directory.index
        for key, rule in zip(keys, rules, strict=True):
            size_bytes = 0
            if rule.quotas:
                entry = self._catalog.live(key)
                if entry is not None and not entry.detached:
                    size_bytes = entry.allocated_bytes
                elif key in sizes:
                    size_bytes = sizes[key]
                elif record := await self._disk.call(index.get, key):
                    size_bytes = record.allocated_bytes
            self._contents.charge(key, size_bytes, rule.quotas if size_bytes else ())

    async def _rules(self, namespace: NamespaceId, contents: Sequence[ContentId]) -> list[Rule]:
        service = self._service(namespace)
        if service is None:
            return [Rule()] * len(contents)
        rules: list[Rule] = await within(service.rules_of(contents), ANSWER_S)
        return rules

    # ---- frees ----------------------------------------------------------------------------------

    async def _free_all_excess(self) -> None:
        """Frees what exceeds quotas. A path of which nothing could be freed, as all of it is pinned
        or the master is away, rests: each try sorts and asks about everything below it."""
        over, now = self._charges.excess(), self._context.monotonic()
        self._rests = {path: rest for path, rest in self._rests.items() if path in over}
        for path, excess_bytes in over.items():
            last = self._rests.get(path)
            if last is not None and now < last.until_s:
                continue
            await self._free_excess(path, excess_bytes)
            if self._charges.excess().get(path, 0) < excess_bytes:
                self._rests.pop(path, None)
            else:
                pause_s = min(LONGEST_REST_S, 2 * last.pause_s) if last is not None else RETRY_S
                self._rests[path] = _Rest(now + pause_s, pause_s)

    async def _free_excess(self, path: bytes, excess_bytes: int) -> None:
        """Frees what was not used for longest of what counts against a quota: it was lowered, or
        this node's share of it."""
        order = self._contents.order
        known = [(key, size) for key, size in self._charges.charged(path) if key in order]
        known.sort(key=lambda one: order.last_use_s(one[0]))
        rest = iter(known)
        while excess_bytes > 0:
            some: list[bytes] = []
            for key, size_bytes in itertools.islice(rest, FREED_AT_ONCE):
                some.append(key)
                excess_bytes -= size_bytes
                if excess_bytes <= 0:
                    break
            if not some:
                return  # what is left is pinned
            if not await self._free(some):
                return
            excess_bytes = self._charges.excess().get(path, 0)

    async def _free(self, keys: Sequence[bytes]) -> bool:
        """Frees what the master permits. Returns False if the master or the disk did not answer."""
        retry_s = self._context.wall() + RETRY_S
        quiet = [key for key in keys if self._is_quiet(key)]
        permitted = await self._permission.request(quiet)
        allowed, lasting = permitted.allowed, self._context.clocks.lasting
        for key in keys:
            self._expiry.postpone(key, retry_s)
        if not allowed:
            return permitted.is_answered
        try:
            counts = await self._catalog.drop(allowed, lambda: lasting() < permitted.until_s)
        except OSError as err:
            self._catalog.disk_fault(err)
            return False
        self._segments.drop_content(allowed)
        for key in allowed:
            self._expiry.drop(key)
        self.freed_files += counts.files
        return permitted.is_answered

    def _is_quiet(self, key: bytes) -> bool:
        """Returns whether a content can be dropped at once, while the permission lasts."""
        entry = self._catalog.live(key)
        return not self._catalog.is_live(key) if entry is None else entry.looking is None


def _ignore(error: OSError | None) -> None:
    """It counts as filled when it moved, then."""


def key_namespace(key: bytes) -> NamespaceId:
    return NamespaceId(key[:16])


def _by_namespace(filled: dict[bytes, float]) -> dict[NamespaceId, dict[bytes, float]]:
    found: dict[NamespaceId, dict[bytes, float]] = {}
    for key, filled_s in filled.items():
        found.setdefault(key_namespace(key), {})[key] = filled_s
    return found


def _filled_s(record: FileRecord) -> int:
    """Returns the time of the last fill; of a record of an earlier version, that of the last
    use."""
    return record.filled_s or record.last_use_s
