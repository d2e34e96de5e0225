"""A master's namespace as a node serves it: `cachefs.core.services.MetadataService` over the wire,
with a node-wide cache in front.

While the master is there, answers are as valid as it said. While its changes are not heard they are
valid for `DEGRADED_VALID_S` at most; while it is down, what is known goes on being answered, and
what is not known raises MasterUnreachable after a deadline.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cachefs.core import cluster as c
from cachefs.core.errors import CacheFSError, NotFound, ProtocolError
from cachefs.core.messages import (
    Done,
    Failure,
    Found,
    GetAttr,
    GetPolicies,
    Invalidate,
    ListDir,
    Listing,
    Lookup,
    Message,
    PoliciesAt,
    PolicySet,
    Resolve,
    SetPolicy,
    error_of,
)
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
from cachefs.core.services import MetadataService, Permission, PolicyService, asker_reach_s
from worker.membership.master_client import REACH_S, MasterClient, MasterUnreachable
from worker.names import walk
from worker.names.events import EventLog
from worker.names.gather import Gather
from worker.names.jobs import MasterJobs
from worker.names.node_cache import Asked, NodeCache
from worker.names.permissions import Permissions
from worker.names.resolved import Resolved
from worker.names.stream import Stream

DEGRADED_VALID_S: Final = 5.0  # of answers that could not be checked, as a master gives them
PATIENCE_S: Final = 2.0  # with a master, where there is an older answer
LISTING_S: Final = 150.0  # a backstop, as the master has one
LOCATE_S: Final = 15.0  # never asks an origin
PERMISSION_S: Final = 5.0
POLICY_S: Final = PERMISSION_WINDOW_S + LOCATE_S  # a pin waits for permissions to end
PERMISSION_SPARE_S: Final = 5.0
MOST_LOOKUP_CALLS: Final = 4  # of one origin
MOST_LOCATE_CALLS: Final = 4
MOST_NAMES_AT_ONCE: Final = 200  # small answers are heard sooner

T = TypeVar("T", bound=Message)


class RemoteNamespace(MasterJobs):
    """Made by `open`, ended by `close`. All methods belong to one event loop."""

    def __init__(
        self,
        master: MasterClient,
        greeted: c.Greeted,
        *,
        clock: Callable[[], float] = time.monotonic,
        cache: NodeCache | None = None,
        reach_s: float = REACH_S,
    ) -> None:
        """`reach_s`: how long a question without any known answer waits for a master that is
        down."""
        self._master = master
        self._namespace = greeted.namespace
        self._clock = clock
        self._reach_s = reach_s
        self._cache = cache or NodeCache(greeted.namespace)
        self._resolved = Resolved()
        self._permissions = Permissions()
        self._log = EventLog()
        self._stream = Stream(master, greeted, self._take, self._gap)
        self._specs: dict[str, UfsSpec] = {}
        self._lookups: dict[str | int, Gather[tuple[int, bytes], Found]] = {}
        self._locates: Gather[int, Origin] = Gather(
            self._ask_places, most_items=c.BATCH_LIMIT, most_calls=MOST_LOCATE_CALLS
        )
        self._following: asyncio.Task[None] | None = None
        self._policy_version = 0
        self.counters = {"hits": 0, "misses": 0, "stale": 0}

    @classmethod
    async def open(cls, master: MasterClient, **options: Any) -> RemoteNamespace:
        """Greets the master and begins to follow its changes. Raises what `MasterClient.ask` does,
        ProtocolError for a master of another time."""
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
        """Starts the stream of changes."""
        self._following = asyncio.get_running_loop().create_task(self._stream.run())

    async def close(self) -> None:
        """Ends the stream, its readers and the calls under way."""
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
    def replaced(self) -> bool:
        """The master has another namespace now."""
        return self._stream.replaced

    def heard_run(self, store_run: int) -> None:
        """Takes the run of the master's store that a registration named, see `Greeted`."""
        self._stream.heard_run(store_run)

    async def _hear(self, seq: int, within_s: float) -> bool:
        return await self._stream.reach(seq, within_s)

    # ---- names -----------------------------------------------------------------------------------

    def lookup_nowait(self, parent: int, name: bytes) -> Found | None:
        """From the cache; while the master is down, also what is no longer valid."""
        found = self._cache.lookup(parent, name, self._clock())
        if found is not None:
            self.counters["hits"] += 1
            return found if self._heard else _shortly(found)
        if self._master.down:
            return self._stale(self._cache.lookup_stale(parent, name))
        return None

    async def lookup(self, parent: int, name: bytes) -> Found:
        found = self.lookup_nowait(parent, name)
        if found is not None:
            return found
        self.counters["misses"] += 1
        known = self._cache.lookup_stale(parent, name)
        return await self._or_stale(self._gather(parent).get((parent, name)), known)

    async def getattr(self, ino: int) -> Found:
        now = self._clock()
        found = self._cache.getattr(ino, now)
        if found is not None:
            return found if self._heard else _shortly(found)
        known = self._cache.getattr_stale(ino)
        if known is not None and self._master.down:
            return self._stale_found(known)
        return await self._or_stale(self._ask_attributes(ino, self._cache.asked(now)), known)

    async def _ask_attributes(self, ino: int, asked: Asked) -> Found:
        found = await self._ask(GetAttr(self._namespace, ino), Found)
        return self._kept(found, self._cache.put_attributes(found, asked))

    async def list_dir(self, ino: int, after: bytes, limit: int) -> Listing:
        now = self._clock()
        page = self._cache.page(ino, after, limit, now)
        if page is not None:
            return page if self._heard else _page_shortly(page)
        known = self._cache.page_stale(ino, after, limit)
        if known is not None and self._master.down:
            return _page_shortly(known)
        asked = self._cache.asked(now)
        question = ListDir(self._namespace, ino, after, limit)
        try:
            page = await self._ask(question, Listing, answer_s=LISTING_S)
        except MasterUnreachable:
            if known is None:
                raise
            return _page_shortly(known)
        self._cache.put_listing(ino, after, limit, page, asked)
        return page if self._heard else _page_shortly(page)

    async def resolve(self, path: bytes) -> Found:
        """See MetadataService. While the master is down, from what is known."""
        path = b"/".join(name for name in path.split(b"/") if name not in (b"", b"."))
        known = self._resolve_known(path)
        if known is not None and self._master.down:
            return self._stale_found(known)
        return await self._or_stale(self._ask_path(path), known)

    async def _ask_path(self, path: bytes) -> Found:
        asked = self._cache.asked(self._clock())
        found = await self._ask(Resolve(self._namespace, path), Found)
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
        await self._ask(c.ListNext(self._namespace, ino), Done, answer_s=LISTING_S)

    async def report_changed(self, ino: int) -> None:
        self._cache.forget(ino)
        await self._ask(c.ReportChanged(self._namespace, ino), Done)

    # ---- bytes -----------------------------------------------------------------------------------

    def locate_nowait(self, ino: int) -> Origin | None:
        return self._cache.origin(ino)

    async def locate(self, ino: int) -> Origin:
        known = self._cache.origin(ino)
        return known if known is not None else await self._locates.get(ino)

    async def _ask_places(self, inos: Sequence[int]) -> list[Origin | CacheFSError]:
        asked = self._cache.asked(self._clock())
        question = c.Locate(self._namespace, [*inos])
        located = await self._ask(question, c.Located, answer_s=LOCATE_S, reach_s=self._reach_s)
        if len(located.places) != len(inos):
            raise ProtocolError("the master answered other questions")
        for ino, place in zip(inos, located.places, strict=True):
            if place.origin is not None:
                self._cache.put_origin(ino, place.origin, asked)
        return [_origin_of(place) for place in located.places]

    def ufs(self, key: str) -> UfsSpec:
        """Raises NotFound for a source that `find_ufs` did not find before."""
        spec = self._specs.get(key)
        if spec is None:
            raise NotFound(f"the source {key} is not known here")
        return spec

    async def find_ufs(self, key: str) -> UfsSpec:
        """Asks the master. Raises NotFound. While the master is down, what it said before."""
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

    async def known_files(self, ino: int) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        """See MetadataService."""
        async for batch in walk.files(self._walked, ino, known=True):
            yield batch

    async def _walked(self, ino: int, known: bool, cursor: bytes) -> c.Walked:
        question = c.Walk(self._namespace, ino, known, cursor)
        return await self._ask(question, c.Walked, answer_s=LISTING_S)

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        """What the master allowed. Raises where it gives no answer: nothing may be evicted."""
        unknown = self._permissions.unknown(contents, self._clock(), PERMISSION_SPARE_S)
        if unknown and self._master.down:  # fills that need room go past the cache at once
            raise MasterUnreachable("the master is down")
        for first in range(0, len(unknown), c.BATCH_LIMIT):
            batch = unknown[first : first + c.BATCH_LIMIT]
            asked_at = self._clock()
            question = c.PermitEviction(self._namespace, [content.key for content in batch])
            answer = await self._ask(
                question, c.Permitted, answer_s=PERMISSION_S, reach_s=PERMISSION_S
            )
            if len(answer.allowed) != len(batch):
                raise ProtocolError("the master answered other questions")
            self._permissions.put(batch, answer.allowed, asked_at + answer.valid_for_s)
        return self._permissions.of(contents, self._clock())

    # ---- policies (see PolicyService) ------------------------------------------------------------

    @property
    def policy_version(self) -> int:
        return self._policy_version

    async def set_policy(self, path: bytes, policy: Policy, unset: Sequence[str]) -> Policy:
        question = SetPolicy(self._namespace, path, policy, [*unset])
        return (await self._ask(question, PolicySet, answer_s=POLICY_S)).policy

    async def policies_at(self, path: bytes) -> PoliciesAt:
        return await self._ask(GetPolicies(self._namespace, path), PoliciesAt)

    async def rules_of(self, contents: Sequence[ContentId]) -> list[Rule]:
        found: list[Rule] = []
        for first in range(0, len(contents), c.BATCH_LIMIT):
            keys = [content.key for content in contents[first : first + c.BATCH_LIMIT]]
            answer = await self._ask(c.RulesOf(self._namespace, keys), c.Rules, answer_s=LOCATE_S)
            if len(answer.places) != len(keys):
                raise ProtocolError("the master answered other questions")
            found += [answer.rules[place] for place in answer.places]
        return found

    # ---- changes ---------------------------------------------------------------------------------

    async def events(self, after: int) -> AsyncIterator[Invalidate]:
        """See MetadataService. Ends when this closes."""
        async for event in self._log.after(after):
            yield event

    @property
    def _heard(self) -> bool:
        return self._stream.intact and not self._master.down

    def _take(self, events: list[Invalidate]) -> None:
        for event in events:
            self._policy_version += event.times
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
        self._policy_version += 1
        self._forget_everything()
        self._log.publish([Invalidate(self._namespace, seq, everything=True)])

    def _forget_everything(self) -> None:
        self._cache.invalidate_everything()
        self._resolved.clear()
        self._permissions.clear()
        self._locates.forget_all()
        for gather in self._lookups.values():
            gather.forget_all()

    def status(self) -> dict[str, Any]:
        """Plain values: what the node knows without asking."""
        return {
            "namespace": self._namespace.hex(),
            "master": self._master.url,
            "master_down": self._master.down,
            "changes_heard": self._stream.intact,
            "sequence": self._stream.seq,
            "calls": {**self._master.counters},
            "names": {**self.counters, **self._cache.sizes()},
        }

    # ---- questions -------------------------------------------------------------------------------

    async def _ask(self, body: c.Call, kind: type[T], **limits: float) -> T:
        limits.setdefault("reach_s", self._patience())
        return await self._master.ask(body, kind, **limits)

    def _patience(self) -> float:
        """Returns for how long the current task waits for a master that is not reached."""
        return min(self._reach_s, asker_reach_s.get())

    def _gather(self, parent: int) -> Gather[tuple[int, bytes], Found]:
        """Questions go together that may have to wait for the same origin."""
        key = self._cache.neighbourhood(parent)
        gather = self._lookups.get(key)
        if gather is None:
            gather = self._lookups[key] = Gather(
                self._ask_names,
                most_items=MOST_NAMES_AT_ONCE,
                most_calls=MOST_LOOKUP_CALLS,
                on_idle=functools.partial(self._idle, key),
            )
        return gather

    def _idle(self, key: str | int) -> None:
        self._lookups.pop(key, None)

    async def _ask_names(self, names: Sequence[tuple[int, bytes]]) -> list[Found | CacheFSError]:
        asked = self._cache.asked(self._clock())
        calls = [Lookup(self._namespace, parent, name) for parent, name in names]
        answers: Sequence[Found | Failure]
        if len(calls) == 1:
            answers = [await self._ask(calls[0], Found, reach_s=self._reach_s)]
        else:
            batch = c.Batch([*calls])
            answers = (await self._ask(batch, c.Batched, reach_s=self._reach_s)).answers
        if len(answers) != len(calls):
            raise ProtocolError("the master answered other questions")
        return [self._name_of(*at, it, asked) for at, it in zip(names, answers, strict=True)]

    def _name_of(
        self, parent: int, name: bytes, answer: Found | Failure, asked: Asked
    ) -> Found | CacheFSError:
        if isinstance(answer, Failure):
            return error_of(answer)
        return self._kept(answer, self._cache.put_found(parent, name, answer, asked))

    def _kept(self, found: Found, kept: bool) -> Found:
        """An answer as it is passed on: one that was overtaken by a change is valid for no time."""
        if not kept:
            return Found(found.inode, 0.0)
        return found if self._heard else _shortly(found)

    async def _or_stale(self, question: Awaitable[Found], known: Inode | None) -> Found:
        """The master's answer, or what was known when there is none soon enough."""
        if known is None:
            return await question
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await question
        except (TimeoutError, MasterUnreachable):
            return self._stale_found(known)

    def _stale(self, inode: Inode | None) -> Found | None:
        return self._stale_found(inode) if inode is not None else None

    def _stale_found(self, inode: Inode) -> Found:
        self.counters["stale"] += 1
        return Found(inode, DEGRADED_VALID_S)


def _origin_of(place: c.Place) -> Origin | CacheFSError:
    if place.origin is not None:
        return place.origin
    if place.failure is not None:
        return error_of(place.failure)
    return ProtocolError("the master answered neither a place nor why not")


def _shortly(found: Found) -> Found:
    return Found(found.inode, min(found.valid_for_s, DEGRADED_VALID_S))


def _page_shortly(page: Listing) -> Listing:
    return Listing(page.entries, page.next, min(page.valid_for_s, DEGRADED_VALID_S))


if TYPE_CHECKING:

    def _is_the_service(namespace: RemoteNamespace) -> MetadataService:
        return namespace

    def _has_policies(namespace: RemoteNamespace) -> PolicyService:
        return namespace
