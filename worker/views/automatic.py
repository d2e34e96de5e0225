"""The views that the policy `view` makes and ends without a command. Owned by the loop; `run` is
the one task. The decisions are in `worker.views.choice`.

A survey (`worker.views.survey`) begins only when something has changed or was used since the last
one, and takes a small share of the time, less while it finds nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from cachefs.core.errors import CacheFSError
from cachefs.core.messages import ViewStatus
from cachefs.core.model import NamespaceId
from cachefs.core.policies import AUTO, NEVER, shown
from cachefs.core.services import MetadataService, PolicyService
from worker.views.choice import (
    MOST_REST_S,
    NO_POLICIES,
    FileCounts,
    Pauses,
    QuietTimes,
    ViewCandidate,
    ViewPolicies,
    YieldingView,
    candidates,
    gives_way,
    too_wide,
    why_too_wide,
)
from worker.views.covers import pause
from worker.views.survey import survey

if TYPE_CHECKING:
    from worker.cache.cache_views import CacheViews
    from worker.cache.tier import Tier
    from worker.views.view import View

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
POLICIES_S: Final = 60.0  # between two requests for policies, which no event reports
RENEW_S: Final = 12.0  # after such an event each look requests them
SURVEY_SHARE: Final = 50  # after a survey of a second there is none for this many seconds
MOST_FRUITLESS: Final = 3  # surveys without a result that each double this time
QUIET_S: Final = 60.0  # the most for which a directory must look the same before it is covered
STUCK_S: Final = 60.0  # then a view that no mount shows is ended
GIVE_WAY_S: Final = 5.0  # between two views of a tier that give way


class ViewMaker(Protocol):
    """All views of the node (`worker.views.views.Views`)."""

    def namespaces(self) -> set[NamespaceId]:
        """Returns the namespaces of mounts that take covers."""

    def all(self) -> Sequence[View]: ...

    async def begin(self, namespace: NamespaceId, path: bytes, tier: Tier, policy: str) -> None:
        """Makes a view that loads and pins nothing, in place of such views below it. Does nothing
        at, above or below a frozen directory, or beyond the limit. Raises CacheFSError."""

    async def end(self, view: View) -> None:
        """Thaws a view that a policy made. Raises CacheFSError."""


@dataclass(slots=True)
class _Namespace:
    """`seen`: what the last survey depended on; None: another one is due. `fruitless`: the surveys
    that found nothing, since one that did. `refused`: what `auto` does not cover, and why."""

    policies: ViewPolicies = NO_POLICIES
    policies_due_s: float = 0.0
    seen: object = None
    due_s: float = 0.0
    fruitless: int = 0
    quiet: QuietTimes = field(default_factory=QuietTimes)
    pauses: Pauses = field(default_factory=Pauses)
    rests: Pauses = field(default_factory=lambda: Pauses(MOST_REST_S))  # of what was not used
    refused: list[ViewStatus] = field(default_factory=list)

    def is_paused(self, path: bytes) -> bool:
        return path in self.pauses or path in self.rests

    def apply(self, policies: ViewPolicies) -> None:
        """Applies the policies. Where an operator has changed them, pauses end."""
        if self.policies_due_s and policies != self.policies:
            self.pauses, self.rests = Pauses(), Pauses(MOST_REST_S)
        self.policies = policies

    def expire(self, now_s: float) -> None:
        """Ends pauses."""
        ended = [pauses.expire(now_s) for pauses in (self.pauses, self.rests)]
        if any(ended):
            self.seen = None

    def surveyed(self, began_s: float, now_s: float, *, has_found: bool) -> None:
        """Begins the pause after a survey."""
        self.fruitless = 0 if has_found else min(self.fruitless + 1, MOST_FRUITLESS)
        self.due_s = now_s + SURVEY_SHARE * (now_s - began_s) * 2**self.fruitless


class AutomaticViews:
    """See the module. `service` raises NotFound for a namespace that is not attached."""

    def __init__(
        self,
        cache: CacheViews,
        views: ViewMaker,
        service: Callable[[NamespaceId], MetadataService],
    ) -> None:
        self._cache = cache
        self._views = views
        self._service = service
        self._monotonic = cache.clocks.monotonic
        self._known: dict[NamespaceId, _Namespace] = {}
        self._short: dict[Tier, bool] = {}  # tiers without room, and whether others are replaced
        self._gave_way_s: dict[int, float] = {}  # by the number of the tier
        self._useless_since_s: dict[View, float] = {}
        self._woken = asyncio.Event()
        self._renew_until_s = float("-inf")

    def wake(self) -> None:
        """Looks again soon: policies have changed, or mounts."""
        self._renew_until_s = self._monotonic() + RENEW_S
        self._woken.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await pause(self._monotonic() + LOOK_S, self._monotonic, self._woken)
            self._woken.clear()
            await self.step()

    async def step(self) -> None:
        """Does what is due now."""
        short, self._short = self._short, {}
        for tier, replaces in short.items():
            await self._make_one_give_way(tier, replaces=replaces)
        mounted = self._views.namespaces()
        for namespace in {*self._known} - mounted:
            self._known[namespace].refused = []
        for namespace in mounted | {view.namespace for view in self._made()}:
            try:
                await self._look(namespace)
            except CacheFSError as err:
                self._of(namespace).seen = None  # the next survey finds what was not begun
                log.debug("the policies about views are not applied now: %s", err.one_line())

    def _made(self) -> list[View]:
        return [view for view in self._views.all() if view.record.policy]

    def _of(self, namespace: NamespaceId) -> _Namespace:
        return self._known.setdefault(namespace, _Namespace())

    # ---- room ----

    def want_room(self, tier: Tier, *, replaces: bool) -> None:
        """Notes that data found no room in a tier. `replaces`: others are evicted for it."""
        now_s = self._monotonic()
        if now_s - self._gave_way_s.get(tier.number, float("-inf")) >= GIVE_WAY_S:
            self._gave_way_s[tier.number] = now_s
            self._short[tier] = replaces
            self._woken.set()

    async def _make_one_give_way(self, tier: Tier, *, replaces: bool) -> None:
        views = self._yielding(tier)
        for view in views:
            await view.look_at_use()
        chosen = gives_way(
            [YieldingView(number, view.used_s) for number, view in enumerate(views)],
            oldest_use_s=tier.order.oldest_use_s(),
            idle_after_s=tier.idle_after_s,
            replaces=replaces,
            now_s=self._cache.clocks.wall(),
        )
        if chosen is not None:
            await self._give_way(views[chosen])

    async def give_way(self, tier: Tier) -> bool:
        """Ends the view that was used longest ago, for a load. Returns False without one."""
        views = self._yielding(tier)
        for view in views:
            await view.look_at_use()
        return bool(views) and await self._give_way(min(views, key=lambda view: view.used_s))

    def _yielding(self, tier: Tier) -> list[View]:
        return [view for view in self._made() if view.tier is tier and view.record.policy == AUTO]

    async def _give_way(self, view: View) -> bool:
        log.info("the view of %s gives way to other data", shown(view.path))
        until_s = self._monotonic() + view.tier.idle_after_s
        self._of(view.namespace).pauses.put(view.path, until_s)
        return await self._end(view)

    async def _end(self, view: View) -> bool:
        self._useless_since_s.pop(view, None)
        try:
            await self._views.end(view)
        except CacheFSError as err:
            log.warning("the view of %s stays for now: %s", shown(view.path), err.one_line())
            return False
        return True

    # ---- what is covered ----

    async def _look(self, namespace: NamespaceId) -> None:
        known, now_s = self._of(namespace), self._monotonic()
        if now_s >= known.policies_due_s or now_s < self._renew_until_s:
            known.apply(await self._policies(namespace))
            known.policies_due_s = now_s + POLICIES_S
        policies = known.policies
        for view in self._made():
            if view.namespace == namespace and self._is_over(view, known, policies):
                await self._end(view)
        known.expire(now_s)
        is_mounted = namespace in self._views.namespaces()
        if not policies.wanted:
            known.refused = []
        elif is_mounted and now_s >= known.due_s:
            await self._survey(namespace, known, policies)

    async def _policies(self, namespace: NamespaceId) -> ViewPolicies:
        service = self._service(namespace)
        if not isinstance(service, PolicyService):
            return NO_POLICIES
        at = await service.policies_at(b"")
        below = {one.path: one.policy.view for one in at.below if one.policy.view is not None}
        return ViewPolicies({b"": at.policy.view or NEVER, **below})

    def _is_over(self, view: View, known: _Namespace, policies: ViewPolicies) -> bool:
        """Returns whether a view that a policy made is to end."""
        if policies.at(view.path) != view.record.policy or not policies.is_whole(view.path):
            return True
        if view.is_unused:
            known.rests.grow(view.path, self._monotonic())
            return True
        if self._is_stuck(view):
            known.pauses.grow(view.path, self._monotonic())
            return True
        return False

    def _is_stuck(self, view: View) -> bool:
        """Returns whether no mount has shown a view for long: it cannot be built, or covered."""
        if not view.is_of_no_use:
            self._useless_since_s.pop(view, None)
            return False
        since_s = self._useless_since_s.setdefault(view, self._monotonic())
        return self._monotonic() - since_s >= STUCK_S

    async def _survey(
        self, namespace: NamespaceId, known: _Namespace, policies: ViewPolicies
    ) -> None:
        service, began_s = self._service(namespace), self._monotonic()
        tiers = [one for one in self._cache.tiers() if one.in_service and one.order_known]
        known_here = [(one.number, len(one.order), one.contents.uses) for one in tiers]
        seen = policies, known_here, _position(service)
        is_enough = any(len(one.order) >= policies.least_files for one in tiers)
        if seen == known.seen or not is_enough:
            return
        known.seen = seen
        orders, found = [one.order for one in tiers], list[ViewCandidate]()
        try:
            totals = await survey(service, policies.wanted, orders, policies.least_files)
            known.refused = self._refused(totals, policies, namespace)
            shown = [(view.path, view.record.policy) for view in self._shown(namespace)]
            found = candidates(totals, policies, shown=shown, is_paused=known.is_paused)
        finally:
            known.surveyed(began_s, self._monotonic(), has_found=bool(found))
        known.quiet.note(found, began_s)
        for one in found:
            await self._begin(namespace, known, one, tiers[one.tier], began_s)

    async def _begin(
        self,
        namespace: NamespaceId,
        known: _Namespace,
        one: ViewCandidate,
        tier: Tier,
        now_s: float,
    ) -> None:
        """Makes the view of a candidate that was the same for long enough."""
        if not one.is_wanted(self._cache.clocks.wall()):
            return
        if known.quiet.for_s(one.path, now_s) < await self._quiet_s(self._service(namespace), one):
            known.seen = None
            return
        known.quiet.forget(one.path)
        await self._views.begin(namespace, one.path, tier, one.policy)

    def _refused(
        self, totals: dict[bytes, FileCounts], policies: ViewPolicies, namespace: NamespaceId
    ) -> list[ViewStatus]:
        shown = [view.path for view in self._shown(namespace)]
        since = {one.path: one.since_s for one in self._of(namespace).refused}
        now_s = self._cache.clocks.wall()
        return [
            _refusal(path, totals[path], since.get(path, now_s))
            for path in too_wide(totals, policies, shown)
        ]

    def refused(self, namespace: NamespaceId) -> list[ViewStatus]:
        """Returns the complete directories that `auto` does not cover, and why."""
        known = self._known.get(namespace)
        return known.refused if known is not None else []

    def all_refused(self) -> list[tuple[NamespaceId, ViewStatus]]:
        """Returns the same of all namespaces."""
        return [(namespace, one) for namespace in self._known for one in self.refused(namespace)]

    def _shown(self, namespace: NamespaceId) -> list[View]:
        return [view for view in self._views.all() if view.namespace == namespace]

    async def _quiet_s(self, service: MetadataService, one: ViewCandidate) -> float:
        """Returns for how long a directory must look the same: its sync interval, if a policy sets
        it, and not for longer than `QUIET_S`."""
        assert isinstance(service, PolicyService)
        interval_s = (await service.policies_at(one.path)).policy.sync_interval_s
        return QUIET_S if interval_s is None or interval_s < 0 else min(interval_s, QUIET_S)


def _refusal(path: bytes, counted: FileCounts, since_s: float) -> ViewStatus:
    files, size_bytes, reason = counted.files, counted.size_bytes, why_too_wide(counted)
    return ViewStatus(0, path, files, size_bytes, "impossible", since_s, 0, reason, AUTO)


def _position(service: MetadataService) -> int:
    position = getattr(service, "position", -1)
    assert isinstance(position, int)
    return position
