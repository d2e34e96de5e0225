"""The views that the policy `view` makes and ends without a command. Owned by the loop; `run` is
the one task. The decisions are in `worker.views.choice`.

A survey (`worker.views.survey`) begins only when something has changed since the last one, and
takes a small share of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from cachefs.core.errors import CacheFSError
from cachefs.core.model import NamespaceId
from cachefs.core.policies import AUTO, NEVER, shown
from cachefs.core.services import MetadataService, PolicyService
from worker.views.choice import (
    NO_POLICIES,
    Pauses,
    QuietTimes,
    ViewCandidate,
    ViewPolicies,
    YieldingView,
    candidates,
    gives_way,
)
from worker.views.covers import pause
from worker.views.survey import survey

if TYPE_CHECKING:
    from worker.cache.cache_views import CacheViews
    from worker.cache.tier import Tier
    from worker.views.view import View

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
POLICIES_S: Final = 60.0  # between two requests for policies, of which no event tells
RENEW_S: Final = 12.0  # after such an event each look requests them
SURVEY_SHARE: Final = 50  # after a survey of a second there is none for this many seconds
QUIET_S: Final = 60.0  # the most for which a directory must look the same before it is covered
STUCK_S: Final = 60.0  # a view that no mount shows for so long is ended
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
    """`seen`: what the last survey depended on."""

    policies: ViewPolicies = NO_POLICIES
    policies_due_s: float = 0.0
    seen: object = None
    due_s: float = 0.0
    quiet: QuietTimes = field(default_factory=QuietTimes)
    pauses: Pauses = field(default_factory=Pauses)


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
        for namespace in self._views.namespaces() | {view.namespace for view in self._made()}:
            try:
                await self._look(namespace)
            except CacheFSError as err:
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
        chosen = gives_way(
            [YieldingView(number, view.since_s) for number, view in enumerate(views)],
            oldest_use_s=tier.order.oldest_use_s(),
            idle_after_s=tier.idle_after_s,
            replaces=replaces,
            now_s=self._cache.clocks.wall(),
        )
        if chosen is not None:
            await self._give_way(views[chosen])

    async def give_way(self, tier: Tier) -> bool:
        """Ends the view whose use is unknown for longest, for a load. Returns False without one."""
        views = self._yielding(tier)
        return bool(views) and await self._give_way(min(views, key=lambda view: view.since_s))

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
            known.policies = await self._policies(namespace)
            known.policies_due_s = now_s + POLICIES_S
        policies = known.policies
        for view in self._made():
            if view.namespace == namespace and self._is_over(view, known, policies):
                await self._end(view)
        known.pauses.expire(now_s)
        is_mounted = namespace in self._views.namespaces()
        if policies.wanted and is_mounted and now_s >= known.due_s:
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
        seen = policies, [(one.number, len(one.order)) for one in tiers], _position(service)
        if seen == known.seen and not known.quiet.is_waiting and not known.pauses:
            return
        known.seen = seen
        found = candidates(
            await survey(service, policies.wanted, [one.order for one in tiers]),
            policies,
            shown=[(view.path, view.record.policy) for view in self._shown(namespace)],
            is_paused=known.pauses.__contains__,
        )
        known.due_s = self._monotonic() + SURVEY_SHARE * (self._monotonic() - began_s)
        known.quiet.note(found, began_s)
        for one in found:
            if known.quiet.for_s(one.path, began_s) >= await self._quiet_s(service, one):
                known.quiet.forget(one.path)
                await self._views.begin(namespace, one.path, tiers[one.tier], one.policy)

    def _shown(self, namespace: NamespaceId) -> list[View]:
        return [view for view in self._views.all() if view.namespace == namespace]

    async def _quiet_s(self, service: MetadataService, one: ViewCandidate) -> float:
        """Returns for how long a directory must look the same: its sync interval, if a policy sets
        it, and not for longer than `QUIET_S`."""
        assert isinstance(service, PolicyService)
        interval_s = (await service.policies_at(one.path)).policy.sync_interval_s
        return QUIET_S if interval_s is None or interval_s < 0 else min(interval_s, QUIET_S)


def _position(service: MetadataService) -> int:
    position = getattr(service, "position", -1)
    assert isinstance(position, int)
    return position
