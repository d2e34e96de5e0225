"""The views of a node: found in its tiers, frozen and thawed, informed of events and mounts. Owned
by the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cachefs.core.errors import (
    CacheFSError,
    InUse,
    NotADirectory,
    NotFound,
    Unavailable,
    Unsupported,
)
from cachefs.core.messages import Invalidate, ViewTable
from cachefs.core.model import Kind, NamespaceId
from cachefs.core.policies import normal, shown
from cachefs.core.services import MetadataService, PositionedEvents
from cachefs.core.units import format_size
from worker.runtime.tasks import Tasks, wait_at_most, within
from worker.store.view_records import ViewRecord
from worker.views.automatic import AutomaticViews
from worker.views.build import Built, ViewPass
from worker.views.choice import is_at_or_below, is_below, is_near
from worker.views.namespace_events import NamespaceEvents, PositionedService
from worker.views.pins import LOCAL, ViewPins
from worker.views.tier_guard import TierGuard
from worker.views.tree_mounts import TreeMounts
from worker.views.view import RESUME_S, View, new_number
from worker.views.view_rows import removals_of, row, status_of, view_rows
from worker.views.walk import Defaults, TreeWalk

if TYPE_CHECKING:
    from worker.cache.cache_views import CacheViews
    from worker.cache.tier import Tier
    from worker.views.hosts import CoverHost

log = logging.getLogger(__name__)

MOST_VIEWS: Final = 64  # of one namespace: so many covers a mount has at most
FREEZE_WAIT_S: Final = 10.0
REACH_STEPS: Final = 20
ADOPT_WAIT_S: Final = 5.0
REMOVED_WAIT_S: Final = 60.0
RETRY_S: Final = 5.0


class _Report(NamedTuple):
    """A client's report about a cover."""

    host: CoverHost
    cover: int
    covered: bool
    reason: str


class Views:
    """`service` raises NotFound for a namespace that is not attached. `node`: as the master knows
    the node whose freezes pin."""

    def __init__(
        self,
        cache: CacheViews,
        service: Callable[[NamespaceId], MetadataService],
        mounts: TreeMounts | None = None,
        node: str = LOCAL,
    ) -> None:
        self._cache = cache
        self._mounts = mounts or TreeMounts()
        self._service = service
        self._defaults: Defaults = os.geteuid(), os.getegid(), 0o644, 0o755  # without a mount
        self._views: list[View] = []
        self._runs: dict[View, asyncio.Task[None]] = {}
        self._hosts: list[CoverHost] = []
        self._events: dict[NamespaceId, NamespaceEvents] = {}
        self._adopted: dict[int, asyncio.Task[None]] = {}  # by the number of the tier
        self._unread: set[int] = set()  # numbers of tiers whose views were not found yet
        self._reports: list[_Report] = []  # of unknown covers, which may be of these
        self._tasks = Tasks()
        self._freezing = asyncio.Lock()
        self._pins = ViewPins(node)
        self._past: dict[str, Any] = {"covers": 0, "covered_s": 0.0, "uncovers": {}}
        self.automatic = AutomaticViews(cache, self, service)
        self._tasks.start(self.automatic.run())
        cache.subscribe(self._tiers_changed)
        self._tiers_changed()

    async def close(self) -> None:
        """Ends all tasks. Trees and covers stay, for the next process."""
        await self._tasks.close()
        for view in self._views:
            view.covers.close()

    # ---- tiers ----

    def _tiers_changed(self) -> None:
        running = self._cache.tiers()
        for tier in running:
            if tier.number not in self._adopted:
                self._unread.add(tier.number)
                self._adopted[tier.number] = self._tasks.start(self._adopt(tier))
        for view in [*self._views]:
            if view.tier not in running:
                self._forget(view)
            elif not view.tier.in_service:
                self._tasks.start(view.uncover("tier"))

    async def _adopt(self, tier: Tier) -> None:
        """Takes over the views that an earlier process left in a tier."""
        tier.views.guard(TierGuard(self, tier))
        for number, record in (await self._records_of(tier)).items():
            if record.thawed:
                tier.views.removals.start(number, record, self._cache.clocks.wall())
            else:
                self._add(View(self._cache, self._mounts, tier, number, record))
        self._unread.discard(tier.number)
        self._take_reports(also_unknown=False)

    async def _records_of(self, tier: Tier) -> dict[int, ViewRecord]:
        """Returns the records of a tier's views; none if another tier has taken its place."""
        while tier in self._cache.tiers():
            try:
                return await tier.views.records()
            except OSError as err:
                log.warning("views of %s cannot be read: %s", tier.spec.path, err)
            await asyncio.sleep(RETRY_S)
        return {}

    def _add(self, view: View) -> None:
        self._views.append(view)
        for host in [*self._hosts]:
            if host.shows(view.namespace):
                view.add(host)
        self._start(view)

    def _start(self, view: View) -> None:
        """Starts a view whose namespace is attached, unless its tier is gone."""
        events = self._follow(view.namespace)
        if events is not None and view in self._views and view not in self._runs:
            self._runs[view] = self._tasks.start(view.run(events))

    def _follow(self, namespace: NamespaceId) -> NamespaceEvents | None:
        """Returns the events of a namespace; None if it is not attached, or has no positions."""
        known = self._events.get(namespace)
        if known is not None:
            return known
        try:
            service = self._service(namespace)
        except CacheFSError:
            return None
        if not isinstance(service, PositionedEvents):
            return None
        positioned: PositionedService = service
        events = self._events[namespace] = NamespaceEvents(positioned, self.heed)
        self._tasks.start(events.run())
        return events

    def _forget(self, view: View) -> None:
        if view not in self._views:
            return  # its tier is gone
        self._views.remove(view)
        run = self._runs.pop(view, None)
        if run is not None:
            run.cancel()
        view.covers.close()
        self._past = _summed(self._past, view)

    # ---- what policies make (see `worker.views.automatic.ViewMaker`) ----

    def namespaces(self) -> set[NamespaceId]:
        return {namespace for namespace in self._events if self._hosts_of(namespace)}

    def all(self) -> Sequence[View]:
        return [*self._views]

    async def begin(self, namespace: NamespaceId, path: bytes, tier: Tier, policy: str) -> None:
        async with self._freezing:
            views = self._of(namespace)
            below = [view for view in views if is_below(view.path, path)]
            meets = any(is_at_or_below(path, view.path) for view in views)
            frozen = any(not view.record.policy for view in below)
            if meets or frozen or len(views) - len(below) >= MOST_VIEWS:
                return
            for view in below:
                await self._thaw(view)
            await self._make(namespace, path, tier, policy=policy)

    async def end(self, view: View) -> None:
        async with self._freezing:
            if view in self._views and view.record.policy:
                await self._thaw(view)
                await self._removed(view)

    async def _removed(self, view: View) -> None:
        """Waits until the contents of a thawed view may be evicted, unless the disk hangs."""
        over = view.tier.views.removals.until_over(lambda record: record is view.record)
        try:
            await within(over, REMOVED_WAIT_S)
        except TimeoutError:
            log.warning("the tree of %s is not removed yet", shown(view.path))

    # ---- mounts ----

    async def attached(self, namespace: NamespaceId) -> None:
        """Starts the views of a namespace. Returns once none of them may show anything that its
        mounts do not show."""
        reading = [
            self._adopted[tier.number]
            for tier in self._cache.tiers()
            if tier.number in self._unread and tier.in_service  # others are not waited for
        ]
        if reading:
            await asyncio.wait(reading, timeout=ADOPT_WAIT_S)
        self._follow(namespace)
        self._take_reports(also_unknown=True)
        views = self._of(namespace)
        for view in views:
            self._start(view)
        await asyncio.gather(*map(self._resumed, views))

    async def _resumed(self, view: View) -> None:
        try:
            await within(view.resumed.wait(), RESUME_S)
        except TimeoutError:
            await view.give_up_resuming()

    def joined(self, host: CoverHost) -> None:
        """Covers the mount of a client that has attached."""
        self._hosts.append(host)
        self.automatic.wake()
        for view in self._views:
            # A command to a client that has just died ends it: it is added nowhere any more.
            if host in self._hosts and host.shows(view.namespace):
                view.add(host)

    def left(self, host: CoverHost, *, is_followed: bool) -> None:
        """Notes the end of a client. `is_followed`: its mount continues."""
        if host in self._hosts:
            self._hosts.remove(host)
        self._reports = [report for report in self._reports if report.host is not host]
        for view in self._views:
            view.remove(host, is_followed=is_followed)

    def reported(self, host: CoverHost, cover: int, *, covered: bool, reason: str) -> None:
        """Takes a client's report about a cover, also before the client has attached."""
        is_known = any(view.covers.number == cover for view in self._views)
        if is_known or not self._unread:
            self._take_report(host, cover, covered=covered, reason=reason)
        else:
            self._reports.append(_Report(host, cover, covered, reason))

    def _take_reports(self, *, also_unknown: bool) -> None:
        """Takes what was reported. `also_unknown`: covers of views that were not found go."""
        take = self._take_report if also_unknown else self.reported
        for report in [*self._reports]:
            if report in self._reports:  # else its client has ended meanwhile
                self._reports.remove(report)
                take(report.host, report.cover, covered=report.covered, reason=report.reason)

    def _take_report(self, host: CoverHost, cover: int, *, covered: bool, reason: str) -> None:
        for view in self._views:
            if view.covers.number == cover:
                return view.reported(host, covered=covered, reason=reason)
        if covered:
            host.send_uncover(cover)

    # ---- changes ----

    async def heed(self, event: Invalidate) -> None:
        """Returns once no cover shows what an event may change."""
        if event.policies or event.everything:
            self.automatic.wake()
        touched = [view for view in self._of(event.namespace) if view.touched_by(event)]
        if touched:
            await asyncio.gather(*(view.uncover("changed") for view in touched))

    async def reach(self, namespace: NamespaceId, position: int) -> None:
        """Waits until the events up to a position were heeded."""
        events = self._events.get(namespace)
        if events is not None and self._of(namespace):
            await events.reach(position, REACH_STEPS)

    async def uncover_path(self, namespace: NamespaceId, path: bytes, reason: str) -> None:
        """Uncovers the views at, above and below a path, before a command changes it."""
        path = normal(path)
        near = [view for view in self._of(namespace) if is_near(view.path, path)]
        await asyncio.gather(*(view.uncover(reason) for view in near))

    async def leave(self, tier: Tier, keys: Sequence[bytes]) -> None:
        """See `worker.tier.contents.ViewGuard`."""
        places = await tier.views.find(keys)
        numbers = {place.view for place in places}
        shown_by = [view for view in self._of_tier(tier) if view.number in numbers]
        await asyncio.gather(*(view.uncover("dropped") for view in shown_by))
        await tier.views.withdraw(places)

    async def leave_all(self, tier: Tier) -> None:
        await asyncio.gather(*(view.uncover("tier") for view in self._of_tier(tier)))

    def lost(self, tier: Tier) -> None:
        for view in self._of_tier(tier):
            self._tasks.start(view.uncover("lost"))

    def _of(self, namespace: NamespaceId) -> list[View]:
        return [view for view in self._views if view.namespace == namespace]

    def _hosts_of(self, namespace: NamespaceId) -> list[CoverHost]:
        return [host for host in self._hosts if host.shows(namespace)]

    def _of_tier(self, tier: Tier) -> list[View]:
        return [view for view in self._views if view.tier is tier]

    # ---- commands ----

    async def freeze(self, namespace: NamespaceId, path: bytes, *, wait: bool) -> ViewTable:
        """See `Freeze`."""
        async with self._freezing:
            view = await self._frozen(namespace, normal(path))
        if wait:
            await wait_at_most(view.settled, FREEZE_WAIT_S)
        return ViewTable([view.status()])

    async def _frozen(self, namespace: NamespaceId, path: bytes) -> View:
        """Returns the frozen view at or above a path, which is built now if it waits, or a new one,
        which takes the place of those below it, and of those that a policy made."""
        service = self._service(namespace)
        await self._check(service, path)
        for view in self._of(namespace):
            if is_at_or_below(path, view.path) and not view.record.policy:
                view.hasten()
                return view
        near = [view for view in self._of(namespace) if is_near(view.path, path)]
        if len(self._of(namespace)) - len(near) >= MOST_VIEWS:
            raise InUse(f"{MOST_VIEWS} views are the most of a source", remedy="thaw one first")
        tier = await self._tier_for(service, path)
        pinned = await self._pins.pin(service, path)
        for view in near:
            await self._thaw_pinned(service, view)
        return await self._make(namespace, path, tier, pinned=pinned)

    async def _make(
        self,
        namespace: NamespaceId,
        path: bytes,
        tier: Tier,
        *,
        pinned: bool = False,
        policy: str = "",
    ) -> View:
        defaults = self._defaults_of(namespace)
        record = ViewRecord(bytes(namespace), path, defaults, pinned, policy=policy)
        view = View(self._cache, self._mounts, tier, new_number(), record)
        try:
            with _disk_failures():
                await tier.views.make(view.number, record)
        except BaseException:  # also a cancellation: the next start must not find it
            self._tasks.start(self._unmake(view))
            raise
        self._add(view)
        return view

    async def _unmake(self, view: View) -> None:
        """Removes a view that was not added, and may be recorded."""
        thawed = msgspec.structs.replace(view.record, thawed=True)
        try:
            await view.tier.views.thaw(view.number, thawed, None)
        except OSError as err:
            log.warning("a view of %s may be left: %s", shown(view.path), err.strerror or err)

    async def _check(self, service: MetadataService, path: bytes) -> None:
        """Raises Unsupported, NotFound, NotADirectory."""
        if self._follow(service.namespace) is None:
            raise Unsupported("directories of this source cannot be frozen")
        inode = (await service.resolve(path)).inode
        if inode is None:
            raise NotFound("no such file or directory", path=shown(path))
        if inode.kind is not Kind.DIRECTORY:
            raise NotADirectory("only directories can be frozen", path=shown(path))

    def _defaults_of(self, namespace: NamespaceId) -> Defaults:
        hosts = self._hosts_of(namespace)
        return hosts[0].defaults if hosts else self._defaults

    async def _tier_for(self, service: MetadataService, path: bytes) -> Tier:
        """Returns the fastest tier that may hold all of a directory. Raises Unavailable, and InUse
        with figures if none may."""
        tiers = [tier for tier in self._cache.tiers() if tier.in_service]
        if not tiers:
            raise Unavailable("no tier of the cache is in service")
        if len(tiers) == 1:
            return tiers[0]
        built = await self._survey(service, path, tiers[0])
        for tier in tiers:
            if built.size_bytes <= tier.room().limit_bytes:
                return tier
        largest = max(tier.room().limit_bytes for tier in tiers)
        raise InUse(
            f"{built.files:,} files of {format_size(built.size_bytes)} fit into no tier: the "
            f"largest takes {format_size(largest)}",
            remedy="freeze a part of it, or give a larger tier",
            path=shown(path),
        )

    async def _survey(self, service: MetadataService, path: bytes, tier: Tier) -> Built:
        walk = TreeWalk(service, 0, path, self._defaults, self._cache.clocks.monotonic)
        return await ViewPass(self._cache, tier, service, 0, path).survey(walk)

    async def thaw(self, namespace: NamespaceId, path: bytes) -> None:
        """See `Thaw`."""
        path = normal(path)
        async with self._freezing:
            found = [view for view in self._of(namespace) if view.path == path]
            if not found and await self._pins.unpin(self._service(namespace), path):
                return
            if not found:
                above = [view for view in self._of(namespace) if is_at_or_below(path, view.path)]
                remedy = f"thaw {shown(above[0].path)}, which is above it" if above else ""
                raise NotFound("it is not frozen", path=shown(path), remedy=remedy)
            if found[0].record.policy:
                raise InUse(
                    f"the policy view={found[0].record.policy} covers it",
                    path=shown(path),
                    remedy=f"cachefs policy set {quote(shown(path))} view=never",
                )
            for view in found:  # two, if a start found one that a failed freeze had left
                await self._thaw_pinned(self._service(namespace), view)

    async def _thaw_pinned(self, service: MetadataService, view: View) -> None:
        """Thaws a view, and removes the pin that its freeze has set."""
        await self._thaw(view)
        if view.record.pinned:
            await self._pins.unpin(service, view.path)

    async def _thaw(self, view: View) -> None:
        run = self._runs.pop(view, None)
        try:
            if run is not None:
                run.cancel()
                await asyncio.wait([run])
            with _disk_failures():
                await view.thaw()
        except BaseException:  # also a cancellation: it goes on
            self._start(view)
            raise
        self._forget(view)

    def table(self, namespace: NamespaceId) -> ViewTable:
        """See `ListViews`."""
        views, removals = self._of(namespace), removals_of(self._cache.tiers())
        rows = [view.status() for view in views]
        rows += [status_of(one) for one in removals if one.record.namespace == namespace]
        rows += self.automatic.refused(namespace)
        return ViewTable(sorted(rows, key=lambda one: one.path))

    def status(self) -> dict[str, Any]:
        """Returns plain values for `cachefs status` and the metrics."""
        total = self._past
        for view in self._views:
            total = _summed(total, view)
        rows = view_rows(self._views, self._cache.tiers())
        return {
            **total,
            "files": sum(one["files"] for one in rows),
            "bytes": sum(one["bytes"] for one in rows),
            "rows": [*rows, *starmap(row, self.automatic.all_refused())],
        }


@contextlib.contextmanager
def _disk_failures() -> Iterator[None]:
    """Raises Unavailable in place of OSError."""
    try:
        yield
    except OSError as err:
        raise Unavailable(f"the cache disk failed: {err.strerror or err}") from err


def _summed(total: dict[str, Any], view: View) -> dict[str, Any]:
    uncovers = dict(total["uncovers"])
    for reason, count in view.uncovers.items():
        uncovers[reason] = uncovers.get(reason, 0) + count
    return {
        "covers": total["covers"] + view.counters["covers"],
        "covered_s": total["covered_s"] + view.covered_s(),
        "uncovers": uncovers,
    }
