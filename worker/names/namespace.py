"""A master's namespace as a node serves it: `cachefs.core.services.MetadataService` over the wire,
with a node-wide cache in front.

A reply is valid for as long as the master states. While the stream of invalidations is interrupted,
replies are valid for at most `DEGRADED_VALID_S`. While the master is down, expired records are used
as well, and a call for what is not cached raises MasterUnreachable after a deadline.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.change_messages import ChangedFolders, changed_by
from cachefs.core.errors import (
    CacheFSError,
    NotFound,
    PositionGone,
    ProtocolError,
    Stale,
    Unsupported,
)
from cachefs.core.lasting_clock import lasting_s
from cachefs.core.model import (
    ROOT_INO,
    ContentId,
    Inode,
    Kind,
    NamespaceId,
    Origin,
    UfsSpec,
)
from cachefs.core.policies import PERMISSION_WINDOW_S, Policy, Rule
from cachefs.core.services import MetadataService, Permission, PolicyService, master_wait_s
from worker.membership.master_client import REACH_S, MasterClient, MasterUnreachable
from worker.names import walk
from worker.names.events import EventLog
from worker.names.jobs import MasterJobs
from worker.names.node_cache import NodeCache, RequestMark
from worker.names.permissions import Permissions
from worker.names.places import origin_of
from worker.names.request_batcher import RequestBatcher
from worker.names.resolved_paths import ResolvedPaths
from worker.names.stream import Stream

DEGRADED_VALID_S: Final = 5.0  # the validity of stale replies; a master uses the same value
PATIENCE_S: Final = 2.0  # the timeout of a reply if a stale one is cached
LISTING_S: Final = 150.0  # a backstop; the master has its own
LOCATE_S: Final = 15.0  # the master needs no origin for it
PERMISSION_S: Final = 5.0
POLICY_S: Final = PERMISSION_WINDOW_S + LOCATE_S  # a pin waits for permissions to end
PERMISSION_SPARE_S: Final = 5.0
MOST_LOOKUP_CALLS: Final = 4  # in flight for one origin
MOST_LOCATE_CALLS: Final = 4
MOST_NAMES_AT_ONCE: Final = 200  # of one call: small replies arrive sooner

T = TypeVar("T", bound=m.Message)


class RemoteNamespace(MasterJobs):
    """A master's namespace, from `open` to `close`. All methods belong to one event loop."""

    def __init__(
        self,
        master: MasterClient,
        greeted: c.Greeted,
        *,
        clock: Callable[[], float] = lasting_s,
        cache: NodeCache | None = None,
        reach_s: float = REACH_S,
        on_unsure: Callable[[], None] = lambda: None,
    ) -> None:
        """`reach_s`: the timeout of a request to an unreachable master, if no reply is cached.
        `on_unsure` is called when whatever is known of the namespace may be wrong."""
        self._master = master
        self._namespace = greeted.namespace
        self._clock = clock
        self._reach_s = reach_s
        self._on_unsure = on_unsure
        self._cache = cache or NodeCache(greeted.namespace)
        self._resolved = ResolvedPaths()
        self._permissions = Permissions()
        self._log = EventLog()
        self._began_at = greeted.seq  # earlier events are unknown here
        self._stream = Stream(master, greeted, self._take, self._gap)
        self._specs: dict[str, UfsSpec] = {}
        self._lookups: dict[str | int, RequestBatcher[tuple[int, bytes], m.Found]] = {}
        self._locates: RequestBatcher[int, Origin] = RequestBatcher(
            self._ask_places, most_items=c.BATCH_LIMIT, most_calls=MOST_LOCATE_CALLS
        )
        self._following: asyncio.Task[None] | None = None
        self.policy_version = 0
        self.counters = {"hits": 0, "misses": 0, "stale": 0}

    @classmethod
    async def open(cls, master: MasterClient, **options: Any) -> RemoteNamespace:
        """Greets the master and starts to follow its invalidations. Raises what `MasterClient.ask`
        raises, and ProtocolError for a master of an incompatible version."""
        greeted = await master.ask(c.Greeting(), c.Greeted, reach_s=options.get("reach_s", REACH_S))
        if abs(greeted.protocol - c.PROTOCOL) > 1:
            raise ProtocolError(
                f"protocol {greeted.protocol} of the master is too far from {c.PROTOCOL}",
                remedy="install the same version of cachefs on both machines",
            )
        namespace = cls(master, greeted, **options)
        namespace.follow()
        return namespace

    def follow(self) -> None:
        """Starts the stream of invalidations."""
        self._following = asyncio.get_running_loop().create_task(self._stream.run())

    async def close(self) -> None:
        """Ends the stream, its readers and the batched calls in flight."""
        self._log.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._locates.close()
        for gather in [*self._lookups.values()]:
            await gather.close()

    @property
    def namespace(self) -> NamespaceId:
        return self._namespace

    @property
    def position(self) -> int:
        """The position of the events that have arrived."""
        return self._stream.seq

    @property
    def replaced(self) -> bool:
        """True if the master now serves another namespace."""
        return self._stream.replaced

    def heard_run(self, store_run: int) -> None:
        """Records the store run from a registration's reply, see `Greeted`."""
        self._stream.heard_run(store_run)

    async def _hear(self, seq: int, within_s: float) -> bool:
        return await self._stream.reach(seq, within_s)

    # ---- names -----------------------------------------------------------------------------------

    def lookup_nowait(self, parent: int, name: bytes) -> m.Found | None:
        """Returns the cached reply; while the master is down, also an expired one."""
        found = self._cache.lookup(parent, name, self._clock())
        if found is not None:
            self.counters["hits"] += 1
            return found if self._heard else _shortly(found)
        if self._master.down:
            return self._stale(self._cache.lookup_stale(parent, name))
        return None

    async def lookup(self, parent: int, name: bytes) -> m.Found:
        found = self.lookup_nowait(parent, name)
        if found is not None:
            return found
        self.counters["misses"] += 1
        known = self._cache.lookup_stale(parent, name)
        return await self._or_stale(self._gather(parent).get((parent, name)), known)

    async def getattr(self, ino: int) -> m.Found:
        now = self._clock()
        found = self._cache.getattr(ino, now)
        if found is not None:
            return found if self._heard else _shortly(found)
        known = self._cache.getattr_stale(ino)
        if known is not None and self._master.down:
            return self._stale_found(known)
        return await self._or_stale(self._ask_attributes(ino, self._cache.asked(now)), known)

    async def _ask_attributes(self, ino: int, asked: RequestMark) -> m.Found:
        found = await self._ask(m.GetAttr(self._namespace, ino), m.Found)
        return self._kept(found, self._cache.put_attributes(found, asked))

    async def list_dir(self, ino: int, after: bytes, limit: int) -> m.Listing:
        now = self._clock()
        page = self._cache.page(ino, after, limit, now)
        if page is not None:
            return page if self._heard else _page_shortly(page)
        known = self._cache.page_stale(ino, after, limit)
        if known is not None and self._master.down:
            return _page_shortly(known)
        asked = self._cache.asked(now)
        request = m.ListDir(self._namespace, ino, after, limit)
        try:
            page = await self._ask(request, m.Listing, answer_s=LISTING_S)
        except MasterUnreachable:
            if known is None:
                raise
            return _page_shortly(known)
        self._cache.put_listing(ino, after, limit, page, asked)
        return page if self._heard else _page_shortly(page)

    async def resolve(self, path: bytes) -> m.Found:
        """See MetadataService. While the master is down, resolves from the cache if it can."""
        path = b"/".join(name for name in path.split(b"/") if name not in (b"", b"."))
        known = self._resolve_known(path)
        if known is not None and self._master.down:
            return self._stale_found(known)
        return await self._or_stale(self._ask_path(path), known)

    async def _ask_path(self, path: bytes) -> m.Found:
        asked = self._cache.asked(self._clock())
        found = await self._ask(m.Resolve(self._namespace, path), m.Found)
        kept = self._cache.put_attributes(found, asked)
        if kept and found.inode is not None and found.inode.kind is Kind.DIRECTORY:
            self._resolved.put(path, found.inode)
        return self._kept(found, kept)

    def _resolve_known(self, path: bytes) -> Inode | None:
        inode, names = self._resolved.nearest(path)
        if inode is None and not names:
            return self._cache.getattr_stale(ROOT_INO)
        for name in names:
            inode = self._cache.lookup_stale(inode.ino if inode else ROOT_INO, name)
            if inode is None:
                return None
        return inode

    async def list_next(self, ino: int) -> None:
        """See MetadataService."""
        await self._ask(c.ListNext(self._namespace, ino), m.Done, answer_s=LISTING_S)

    async def report_changed(self, ino: int) -> None:
        self._cache.forget(ino)
        await self._ask(c.ReportChanged(self._namespace, ino), m.Done)

    # ---- bytes -----------------------------------------------------------------------------------

    def locate_nowait(self, ino: int) -> Origin | None:
        return self._cache.origin(ino)

    async def locate(self, ino: int) -> Origin:
        known = self._cache.origin(ino)
        return known if known is not None else await self._locates.get(ino)

    async def _ask_places(self, inos: Sequence[int]) -> list[Origin | CacheFSError]:
        asked = self._cache.asked(self._clock())
        request = c.Locate(self._namespace, [*inos])
        located = await self._ask(request, c.Located, answer_s=LOCATE_S, reach_s=self._reach_s)
        if len(located.places) != len(inos):
            raise ProtocolError("the master's reply does not match the request")
        for ino, place in zip(inos, located.places, strict=True):
            if place.origin is not None:
                self._cache.put_origin(ino, place.origin, asked)
            elif place.failure is not None and place.failure.code == Stale.code:
                self._cache.forget(ino)  # its event may still be in progress
        return [origin_of(place) for place in located.places]

    def ufs(self, key: str) -> UfsSpec:
        """Returns a source that `find_ufs` has found before. Raises NotFound for others."""
        spec = self._specs.get(key)
        if spec is None:
            raise NotFound(f"this node does not know the source {key}")
        return spec

    async def find_ufs(self, key: str) -> UfsSpec:
        """Returns a source from the master; its last reply if it is down. Raises NotFound."""
        try:
            found = await self._ask(c.GetUfs(key), c.UfsFound, answer_s=LOCATE_S)
        except MasterUnreachable:
            return self.ufs(key)
        self._specs[key] = found.source
        return found.source

    # ---- in bulk ---------------------------------------------------------------------------------

    async def walk(self, ino: int) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        """See MetadataService."""
        async for batch in walk.files(self._walked, ino, known=False):
            yield batch

    async def known_files(
        self, ino: int, *, shows_unlisted: bool = False
    ) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        """See MetadataService."""
        ask = functools.partial(self._walked, shows_unlisted=shows_unlisted)
        async for batch in walk.files(ask, ino, known=True):
            yield batch

    async def _walked(
        self, ino: int, known: bool, cursor: bytes, *, shows_unlisted: bool = False
    ) -> c.Walked:
        request = c.Walk(self._namespace, ino, known, cursor, shows_unlisted=shows_unlisted)
        walked = await self._ask(request, c.Walked, answer_s=LISTING_S)
        if shows_unlisted and walked.unlisted and not walked.shows_unlisted:
            raise Unsupported("the master does not name directories that were never listed")
        return walked

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        """See MetadataService. Raises MasterUnreachable without a reply: then evict nothing."""
        unknown = self._permissions.unknown(contents, self._clock(), PERMISSION_SPARE_S)
        if unknown and self._master.down:  # without waiting: the read then bypasses the cache
            raise MasterUnreachable("the master is down")
        for first in range(0, len(unknown), c.BATCH_LIMIT):
            batch = unknown[first : first + c.BATCH_LIMIT]
            asked_at = self._clock()
            request = c.PermitEviction(self._namespace, [content.key for content in batch])
            reply = await self._ask(
                request, c.Permitted, answer_s=PERMISSION_S, reach_s=PERMISSION_S
            )
            if len(reply.allowed) != len(batch):
                raise ProtocolError("the master's reply does not match the request")
            self._permissions.put(batch, reply.allowed, asked_at + reply.valid_for_s)
        return self._permissions.of(contents, self._clock())

    # ---- policies (see PolicyService) ------------------------------------------------------------

    async def set_policy(
        self, path: bytes, policy: Policy, unset: Sequence[str], node: str = ""
    ) -> Policy:
        request = m.SetPolicy(self._namespace, path, policy, [*unset], node)
        return (await self._ask(request, m.PolicySet, answer_s=POLICY_S)).policy

    async def policies_at(self, path: bytes) -> m.PoliciesAt:
        return await self._ask(m.GetPolicies(self._namespace, path), m.PoliciesAt)

    async def rules_of(self, contents: Sequence[ContentId]) -> list[Rule]:
        found: list[Rule] = []
        for first in range(0, len(contents), c.BATCH_LIMIT):
            keys = [content.key for content in contents[first : first + c.BATCH_LIMIT]]
            reply = await self._ask(c.RulesOf(self._namespace, keys), c.Rules, answer_s=LOCATE_S)
            if len(reply.places) != len(keys):
                raise ProtocolError("the master's reply does not match the request")
            found += [reply.rules[place] for place in reply.places]
        return found

    # ---- changes ---------------------------------------------------------------------------------

    async def events(self, after: int) -> AsyncIterator[m.Invalidate]:
        """See MetadataService. Ends at `close`."""
        async for event in self._log.after(after):
            yield event

    def changed_folders(self, after: int) -> ChangedFolders:
        """See MetadataService."""
        seq, run = self._stream.seq, self._stream.store_run
        if after < 0:
            return ChangedFolders(seq, [], run=run)
        if after < self._began_at:
            return ChangedFolders(seq, [], everything=True, run=run)
        try:
            return changed_by(self._log.after_nowait(after), seq, run)
        except PositionGone:
            return ChangedFolders(seq, [], everything=True, run=run)

    @property
    def _heard(self) -> bool:
        return self._stream.intact and not self._master.down

    def _take(self, events: list[m.Invalidate]) -> None:
        for event in events:
            self.policy_version += event.times
            if event.policies or event.everything:
                self._cache.policies_changed()
            if event.everything:
                self._forget_everything()
            for parent, name in event.entries:
                self._cache.invalidate(parent, name)
                self._resolved.forget(name)
                for gather in self._lookups.values():
                    gather.forget((parent, name))
            self._locates.forget_all()
        self._log.publish(events)

    def _gap(self, seq: int) -> None:
        self.policy_version += 1
        self._forget_everything()
        self._log.publish([m.Invalidate(self._namespace, seq, everything=True)])

    def _forget_everything(self) -> None:
        self._on_unsure()
        self._cache.invalidate_everything()
        self._resolved.clear()
        self._permissions.clear()
        self._locates.forget_all()
        for gather in self._lookups.values():
            gather.forget_all()

    def status(self) -> dict[str, Any]:
        """Returns plain values that need no call to the master."""
        return {
            "namespace": self._namespace.hex(),
            "master": self._master.url,
            "master_down": self._master.down,
            "changes_heard": self._stream.intact,
            "sequence": self._stream.seq,
            "calls": {**self._master.counters},
            "names": {**self.counters, **self._cache.sizes()},
        }

    # ---- requests --------------------------------------------------------------------------------

    async def _ask(self, body: c.Call, kind: type[T], **limits: float) -> T:
        limits.setdefault("reach_s", self._patience())
        return await self._master.ask(body, kind, **limits)

    def _patience(self) -> float:
        """Returns how long the current task waits for an unreachable master, in seconds."""
        return min(self._reach_s, master_wait_s.get())

    def _gather(self, parent: int) -> RequestBatcher[tuple[int, bytes], m.Found]:
        """Returns the batcher of a directory. Lookups share a batch only if they may wait for the
        same origin: a slow origin does not delay the others."""
        key = self._cache.neighbourhood(parent)
        gather = self._lookups.get(key)
        if gather is None:
            gather = self._lookups[key] = RequestBatcher(
                self._ask_names,
                most_items=MOST_NAMES_AT_ONCE,
                most_calls=MOST_LOOKUP_CALLS,
                on_idle=functools.partial(self._idle, key),
            )
        return gather

    def _idle(self, key: str | int) -> None:
        self._lookups.pop(key, None)

    async def _ask_names(self, names: Sequence[tuple[int, bytes]]) -> list[m.Found | CacheFSError]:
        asked = self._cache.asked(self._clock())
        calls = [m.Lookup(self._namespace, parent, name) for parent, name in names]
        replies: Sequence[m.Found | m.Failure]
        if len(calls) == 1:
            replies = [await self._ask(calls[0], m.Found, reach_s=self._reach_s)]
        else:
            batch = c.Batch([*calls])
            replies = (await self._ask(batch, c.Batched, reach_s=self._reach_s)).answers
        if len(replies) != len(calls):
            raise ProtocolError("the master's reply does not match the request")
        return [self._name_of(*at, it, asked) for at, it in zip(names, replies, strict=True)]

    def _name_of(
        self, parent: int, name: bytes, reply: m.Found | m.Failure, asked: RequestMark
    ) -> m.Found | CacheFSError:
        if isinstance(reply, m.Failure):
            return m.error_of(reply)
        return self._kept(reply, self._cache.put_found(parent, name, reply, asked))

    def _kept(self, found: m.Found, kept: bool) -> m.Found:
        """Returns the reply for the caller. `kept` False: an invalidation overtook the reply, which
        is then valid for 0 s."""
        if not kept:
            return m.Found(found.inode, 0.0)
        return found if self._heard else _shortly(found)

    async def _or_stale(self, request: Awaitable[m.Found], known: Inode | None) -> m.Found:
        """Returns the master's reply; the stale one if the reply takes longer than `PATIENCE_S`."""
        if known is None:
            return await request
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await request
        except (TimeoutError, MasterUnreachable):
            return self._stale_found(known)

    def _stale(self, inode: Inode | None) -> m.Found | None:
        return self._stale_found(inode) if inode is not None else None

    def _stale_found(self, inode: Inode) -> m.Found:
        self.counters["stale"] += 1
        return m.Found(inode, DEGRADED_VALID_S)


def _shortly(found: m.Found) -> m.Found:
    return m.Found(found.inode, min(found.valid_for_s, DEGRADED_VALID_S))


def _page_shortly(page: m.Listing) -> m.Listing:
    return m.Listing(page.entries, page.next, min(page.valid_for_s, DEGRADED_VALID_S))


if TYPE_CHECKING:

    def _services(namespace: RemoteNamespace) -> tuple[MetadataService, PolicyService]:
        return namespace, namespace
