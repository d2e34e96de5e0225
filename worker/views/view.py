"""One view: built, covered, compared with the namespace while it is covered, uncovered. Owned by
the loop; `run` is its one task.

The rule is *uncover first, then act*: a caller that changes what the view shows awaits `uncover`
before the change has an effect. After that only `run` changes the tree, until it lays covers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Final

import msgspec

from cachefs.core.errors import CacheFSError, NoSpace
from cachefs.core.messages import Invalidate, ViewStatus
from cachefs.core.model import NamespaceId
from cachefs.core.policies import AUTO, shown
from worker.runtime.tasks import within
from worker.store.tree_watches import CannotWatch
from worker.tier.admission import NoRoom
from worker.views import choice
from worker.views.build import Built, ViewPass
from worker.views.choice import is_near
from worker.views.covers import CoverPlace, Covers, pause
from worker.views.pace import RebuildPace
from worker.views.tree_mounts import TreeShown
from worker.views.view_state import SHOWN, Refused, ViewEvent, ViewState, is_shown, moved
from worker.views.walk import TooDeep, TreeWalk

if TYPE_CHECKING:
    from worker.cache.cache_views import CacheViews
    from worker.cache.tier import Tier
    from worker.store.view_records import ViewRecord
    from worker.views.hosts import CoverHost
    from worker.views.namespace_events import NamespaceEvents
    from worker.views.tree_mounts import TreeMounts

log = logging.getLogger(__name__)

LAY_AGAIN_S: Final = 30.0  # between tries to cover mounts that refused
UNREACHABLE_S: Final = 5.0  # before another comparison that failed
LEAST_CHECK_S: Final = 0.5  # between two comparisons
KEEP_POSITION_S: Final = 1.0
MOST_PASSES: Final = 3  # to build a tree by names that are still valid at its end
RESUME_S: Final = 5.0  # a mount waits this long for the comparison after a start
# And then as long for the uncover. No longer: a client that is not attached does not resolve the
# paths of its covers.
RESUME_UNCOVER_S: Final = 1.0
UNUSED: Final = "unused"  # why a view of `auto` was uncovered


class View:
    """See the module. `number`: of its tree in the tier. `since_s`: the time of its present state
    (wall clock)."""

    def __init__(
        self, cache: CacheViews, mounts: TreeMounts, tier: Tier, number: int, record: ViewRecord
    ) -> None:
        self.cache = cache
        self.mounts = mounts
        self.tier = tier
        self.number = number
        self.record = record
        self.path = record.path
        self.namespace = NamespaceId(record.namespace)
        self.reason = ""
        self.counters = {"covers": 0}
        self._covered_s = 0.0
        self.uncovers: dict[str, int] = {}
        self.settled = asyncio.Event()  # the state is neither building nor ready
        self.resumed = asyncio.Event()  # the comparison after a start is over
        self.state = ViewState.RESUMED if record.cover else ViewState.BUILDING
        if not record.cover:
            self.resumed.set()
        self.covers = Covers(record.cover, uncertain=bool(record.cover))
        self._events: NamespaceEvents | None = None
        self._hosts: list[CoverHost] = []
        self._clocks = cache.clocks
        self.since_s = self._clocks.wall()
        self._covered_at_s = 0.0  # monotonic; 0: not covered
        self._changes = 0
        self._walk: TreeWalk | None = None  # the last one, or the one that builds
        self._pace = RebuildPace()
        self._due_s = 0.0
        self._lay_pace = RebuildPace()  # of covers that others removed
        self._lay_s = 0.0  # when mounts without a cover are tried again
        self._woken = asyncio.Event()
        self._uncovering: asyncio.Task[None] | None = None
        # A client that did not answer may still find, unread, what an earlier process sent.
        self._is_inherited = bool(record.cover)
        self.used_s = self._clocks.wall()  # the last known use; a policy begins with one
        self._used_since_compared = False
        self.is_unused = False  # it was uncovered because nothing used it: it is to end

    # ---- what others see ----

    def status(self) -> ViewStatus:
        files, size_bytes = self.record.files, self.record.size_bytes
        state = SHOWN[self.state]
        if self.state is ViewState.READY and self.covers.count:
            state = "covered"
        return ViewStatus(
            self.covers.number, self.path, files, size_bytes, state, self.since_s,
            self.covers.count, self._reason(state), self.record.policy,
        )  # fmt: skip

    @property
    def is_of_no_use(self) -> bool:
        """True if no mount shows it now, and it is not being built."""
        waits = self.state in (ViewState.WAITING, ViewState.IMPOSSIBLE)
        return waits or (self.state is ViewState.READY and not self.covers.count)

    def covered_s(self) -> float:
        """Returns the seconds in which a mount was covered."""
        now = self._clocks.monotonic()
        return self._covered_s + (now - self._covered_at_s if self._covered_at_s else 0.0)

    @property
    def _is_watched(self) -> bool:
        """True if its use is to be seen: it is compared with the origin only while it is used."""
        return self.record.policy == AUTO

    def _reason(self, state: str) -> str:
        if state == "ready":
            return self.covers.reason or self.reason or "no mount of this node takes covers"
        return "" if state == "covered" else self.reason

    def touched_by(self, event: Invalidate) -> bool:
        """Returns whether an event may concern what the view shows."""
        walk = self._walk
        if event.everything or walk is None:
            return event.everything or bool(event.entries)
        return any(
            parent in walk.directories or (parent, name) in walk.chain
            for parent, name in event.entries
        )

    # ---- mounts ----

    def add(self, host: CoverHost) -> None:
        """Covers the mount, now and later."""
        if host.defaults != self.record.defaults:
            return
        self._hosts.append(host)
        self.covers.followed(host)
        if self.state is ViewState.READY and host in self._hosts:
            self.covers.lay([host])

    def remove(self, host: CoverHost, *, is_followed: bool) -> None:
        """Notes the end of a client, which may have reported a cover before it was added."""
        if host in self._hosts:
            self._hosts.remove(host)
        self.covers.ended(host, is_followed=is_followed)
        self._note_covered()

    def reported(self, host: CoverHost, *, covered: bool, reason: str) -> None:
        if covered and host.defaults != self.record.defaults:
            return host.send_uncover(self.covers.number)
        is_lost = self.covers.reported(host, covered=covered, reason=reason)
        if is_lost and self.state is ViewState.READY:
            self._lay_s = min(self._lay_s, self._lay_pace.next_s(self._clocks.monotonic()))
            self._woken.set()
        self._note_covered()

    def _note_covered(self) -> None:
        now = self._clocks.monotonic()
        if self.covers.count and not self._covered_at_s:
            self._covered_at_s = now
            self.since_s = self._clocks.wall()
            self.settled.set()
        elif not self.covers.count and self._covered_at_s:
            self._covered_s += now - self._covered_at_s
            self._covered_at_s = 0.0

    def hasten(self) -> None:
        """Ends the pause before the view is built (again): a user has requested it."""
        if self.state in (ViewState.WAITING, ViewState.IMPOSSIBLE):
            self._due_s = 0.0
            self.settled.clear()
            self._woken.set()

    # ---- its task ----

    async def run(self, events: NamespaceEvents) -> None:
        """Keeps the view until cancelled."""
        self._events = events
        if self.state is ViewState.RESUMED:
            await self._resume()
        while True:
            if self.state is ViewState.READY:
                await self._keep()
            elif self._uncovering is not None:
                await asyncio.shield(self._uncovering)
            else:
                await pause(self._due_s, self._clocks.monotonic, self._woken)
                self._woken.clear()
                if not self.is_unused:
                    await self._build()

    def _move(self, event: ViewEvent, reason: str = "") -> None:
        self.state = moved(self.state, event)
        self.reason = reason
        self.since_s = self._clocks.wall()
        if self.state in (ViewState.BUILDING, ViewState.READY):
            self.settled.clear()
        else:
            self.settled.set()

    def _new_walk(self) -> TreeWalk:
        assert self._events is not None
        service, defaults = self._events.service, self.record.defaults
        return TreeWalk(service, self.number, self.path, defaults, self._clocks.monotonic)

    def _new_pass(self) -> ViewPass:
        assert self._events is not None
        service, loads = self._events.service, not self.record.policy
        return ViewPass(self.cache, self.tier, service, self.number, self.path, loads)

    async def _resume(self) -> None:
        """Compares a tree that an earlier process covered. Without an event since then it is the
        same."""
        assert self._events is not None
        try:
            walk = self._new_walk()
            same = (self.record.position, self.record.losses) == (
                self._events.position,
                self.tier.views.losses,
            )
            if same:
                await walk.find_top()
                walk.directories |= {walk.top, *await self.tier.views.directories(self.number)}
                walk.valid_until_s = self._clocks.monotonic()  # of the names below it is unknown
            else:
                same = not await self._new_pass().differs(walk)
            if same:
                await self._show_resumed(walk)
        except (CacheFSError, OSError) as err:
            self.reason = str(err)
        if self.state is not ViewState.READY:  # also if an event has begun to uncover it
            await self.give_up_resuming()
        self.resumed.set()

    async def give_up_resuming(self) -> None:
        """Uncovers, as far as that is possible in `RESUME_UNCOVER_S`; it is continued."""
        with contextlib.suppress(TimeoutError):
            await within(self.uncover("restart"), RESUME_UNCOVER_S)

    async def _show_resumed(self, walk: TreeWalk) -> None:
        self._walk = walk
        await self._show(walk)
        self._used_since_compared = True  # for all that is known
        if self.state is not ViewState.RESUMED:
            return self.covers.close()
        self._move(ViewEvent.SAME)
        self._lay()

    async def _build(self) -> None:
        """Builds the tree, and lays covers if nothing has changed in between."""
        if self.state is not ViewState.BUILDING:
            self._move(ViewEvent.DUE)
        try:
            await self._until_former_trees_are_gone()
            changes = self._changes
            walk, built = await self._applied()
            if changes == self._changes:
                await self._finish(walk, built, changes)
            else:
                self._postpone(ViewEvent.FAILED, "it changed while it was built")
        except (Refused, NoSpace, TooDeep, CannotWatch) as err:
            self._postpone(ViewEvent.REFUSED, str(err))
        except (CacheFSError, OSError) as err:
            self._postpone(ViewEvent.FAILED, str(err))

    async def _until_former_trees_are_gone(self) -> None:
        """Waits for the removal of trees with the same contents, which it releases."""

        def concerns(record: ViewRecord) -> bool:
            return record.namespace == self.record.namespace and is_near(record.path, self.path)

        self.reason = "a former tree is being removed"
        await self.tier.views.until_removed(concerns)
        self.reason = ""

    async def _applied(self) -> tuple[TreeWalk, Built]:
        """Builds the tree. Names that expire meanwhile are valid for longer in the next pass."""
        for _ in range(MOST_PASSES):
            self._walk = walk = self._new_walk()
            built = await self._apply(walk)
            if walk.valid_until_s > self._clocks.monotonic():
                break
        return walk, built

    async def _apply(self, walk: TreeWalk) -> Built:
        views = self.tier.views
        if not views.is_ready:
            raise OSError("the tier is out of service, or is being started")
        top = (await walk.find_top()).ino
        if self.record.unsure or self.record.top not in (0, top):
            await self._replace_tree()
            walk.view = self.number
        # From now on no start takes the tree for a complete one.
        self.record = msgspec.structs.replace(self.record, cover=0, top=top)
        await views.make(self.number, self.record)
        built = await self._new_pass().apply(walk)
        self._count(built)
        if built.missing:
            raise Refused(built.why) if isinstance(built.error, NoRoom) else OSError(built.why)
        return built

    def _count(self, built: Built) -> None:
        self.record = msgspec.structs.replace(
            self.record, files=built.files, size_bytes=built.size_bytes
        )

    async def _replace_tree(self) -> None:
        """Begins another tree: a mount may still show the one before, or that one is of another
        directory, which was replaced."""
        former, former_record, self.number = self.number, self.record, new_number()
        self.record = msgspec.structs.replace(self.record, cover=0, top=0, unsure=False)
        await self.tier.views.replace(former, former_record, self.number, self.record)
        await self._until_former_trees_are_gone()

    async def _finish(self, walk: TreeWalk, built: Built, changes: int) -> None:
        if walk.valid_until_s <= self._clocks.monotonic():
            raise Refused("its names are valid for too short: set a longer sync_interval")
        number = new_number()
        await self._keep_record(number)
        if changes != self._changes:
            return self._postpone(ViewEvent.FAILED, "it changed while it was built")
        self.covers.close()
        self.covers = Covers(number)
        self._is_inherited = False
        await self._show(walk)
        if changes != self._changes:
            return self._postpone(ViewEvent.FAILED, "it changed while it was built")
        self._move(ViewEvent.BUILT)
        self.counters["covers"] += 1
        self._lay()

    async def _show(self, walk: TreeWalk) -> None:
        fd = await self.tier.views.open_top(self.number)
        self.covers.open(CoverPlace(self.namespace, walk.top, self.path, fd))
        if self._is_watched:
            await self.tier.views.watch(self.number, choice.MOST_DIRECTORIES)

    async def _keep_record(self, cover: int) -> None:
        """Records the number of the covers, and the position up to which they are right."""
        assert self._events is not None
        self.record = msgspec.structs.replace(
            self.record,
            cover=cover,
            position=self._events.position,
            losses=self.tier.views.losses,
        )
        await self.tier.views.put(self.number, self.record)

    def _postpone(self, event: ViewEvent, reason: str) -> None:
        self._move(event, reason)
        self._due_s = self._pace.next_s(self._clocks.monotonic())

    # ---- while mounts are covered ----

    async def _keep(self) -> None:
        """Compares the tree with the namespace as soon as a name is no longer valid."""
        assert self._walk is not None
        now = self._clocks.monotonic()
        check_s = max(self._walk.valid_until_s, now + LEAST_CHECK_S)
        while self.state is ViewState.READY and (now := self._clocks.monotonic()) < check_s:
            if now >= self._lay_s:
                self._lay()
            until_s = min(check_s, self._lay_s, now + KEEP_POSITION_S)
            await pause(until_s, self._clocks.monotonic, self._woken)
            self._woken.clear()
            await self._note_position()
        if self.state is ViewState.READY:
            await self._compare()

    def _lay(self) -> None:
        self._lay_s = self._clocks.monotonic() + LAY_AGAIN_S
        self.covers.lay(self._hosts)

    async def _note_position(self) -> None:
        assert self._events is not None
        if self.state is not ViewState.READY or self._events.position == self.record.position:
            return
        try:
            await self._keep_record(self.record.cover)
        except OSError as err:
            log.debug("the position of a view is not kept: %s", err)

    async def look_at_use(self) -> None:
        """Notes whether its covers were used since the last look, or may have been. What cannot be
        seen counts as no use: else the origin would be listed for nothing."""
        if self.state is not ViewState.READY:
            return
        try:
            used = await self.tier.views.was_used(self.number)
        except (CannotWatch, OSError) as err:
            log.debug("the use of the view of %s cannot be seen: %s", shown(self.path), err)
            return
        if used:
            self.used_s = self._clocks.wall()
            self._used_since_compared = True

    async def _is_used(self) -> bool:
        """Returns whether its covers were used since the last comparison."""
        await self.look_at_use()
        used, self._used_since_compared = self._used_since_compared, False
        return used

    async def _compare(self) -> None:
        if self._is_watched and not await self._is_used():
            return await self.uncover(UNUSED)
        walk = self._new_walk()
        try:
            differs = await self._new_pass().differs(walk)
        except (CacheFSError, OSError) as err:  # the mount shows what is known, too
            log.debug("the view of %s is not compared: %s", shown(self.path), err)
            assert self._walk is not None
            self._walk.valid_until_s = self._clocks.monotonic() + UNREACHABLE_S
            return
        if differs:
            await self.uncover("changed")
        elif self.state is ViewState.READY:
            self._walk = walk

    # ---- uncover first, then act ----

    async def uncover(self, reason: str) -> None:
        """Returns once no cover shows the tree. The view is built again when it is quiet."""
        self._changes += 1
        if self._uncovering is None and is_shown(self.state):
            self.state = moved(self.state, ViewEvent.CHANGED)
            self._uncovering = asyncio.get_running_loop().create_task(self._uncover(reason))
            self._uncovering.add_done_callback(lambda _: self._uncovered(reason))
        if self._uncovering is not None:
            await asyncio.shield(self._uncovering)

    async def _uncover(self, reason: str) -> None:
        cleared = await self.covers.remove(self._clocks.monotonic, self._is_nowhere)
        if not cleared:
            log.warning("a client has not removed its cover of %s", shown(self.path))
            await self.mounts.remove(self.number)
        if self._is_watched:
            with contextlib.suppress(OSError):  # the end of the tier ends them, too
                await self.tier.views.unwatch(self.number)
        # A user may have made a bind mount of the covered directory.
        is_shown = await self.mounts.look(self.number) is TreeShown.SOMEWHERE
        unsure = not cleared or self._is_inherited or is_shown
        self.record = msgspec.structs.replace(self.record, cover=0, unsure=unsure)
        try:
            # First: no start may take a tree that was emptied for a complete one.
            await self.tier.views.put(self.number, self.record)
            if unsure:
                await self.tier.views.empty(self.number)
        except OSError as err:
            log.warning("the view of %s: %s", shown(self.path), err.strerror or err)

    async def _is_nowhere(self) -> bool:
        return await self.mounts.look(self.number) is TreeShown.NOWHERE

    def _uncovered(self, reason: str) -> None:
        self._uncovering = None
        self.resumed.set()
        self.covers.close()
        self._note_covered()
        self.uncovers[reason] = self.uncovers.get(reason, 0) + 1
        self._move(ViewEvent.UNCOVERED, f"uncovered: {reason}")
        self._due_s = self._pace.next_s(self._clocks.monotonic())
        self.is_unused = reason == UNUSED
        self._woken.set()

    async def thaw(self) -> None:
        """Removes the covers, and begins the removal of the tree, which releases the contents.
        `run` has ended. Raises OSError: call it again."""
        if self._is_watched:
            await self.look_at_use()
        await self.uncover("thaw")
        thawed = msgspec.structs.replace(self.record, thawed=True)
        used_s = self.used_s if self._is_watched else None
        await self.tier.views.thaw(self.number, thawed, used_s)
        self.record = thawed  # not before: a view that goes on is none that a start may remove
        if self.state is not ViewState.GONE:
            self._move(ViewEvent.THAWED)


def new_number() -> int:
    return random.SystemRandom().getrandbits(62) | 1
