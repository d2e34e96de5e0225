"""The handlers of the calls of `cachefs.core.cluster`: they use the namespace and the membership,
and check the rights of each caller.

They raise the typed errors, which the HTTP edge translates into failures. All methods belong to one
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_args

import msgspec

import cachefs
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import Caller, inos_of, permit
from cachefs.core.errors import (
    AccessDenied,
    CacheFSError,
    NotFound,
    ProtocolError,
    Stale,
    Throttled,
)
from cachefs.core.model import NamespaceId
from cachefs.core.policies import Rule, shown
from master.mounts import OpenConnector
from master.namespace import Master
from master.server.alarms import quota_used_bytes, worker_facts
from master.server.jobs import JobCalls
from master.server.members import Members
from master.server.single_worker import SingleWorkerMembership
from master.server.sources import SourceCall, SourceCalls
from master.server.streams import EventPolls
from master.server.walks import Walks

log = logging.getLogger(__name__)

T = TypeVar("T")
MAX_POLLS: Final = 4096  # long polls in flight
NOWAIT_AT_ONCE: Final = 100  # items of a batch before the event loop runs other calls
ORIGIN_AT_ONCE: Final = 64  # items of a batch that may wait for origins at a time


_JobCall = m.SubmitJob | m.AddJobPaths | m.GetJob | m.ListJobs | m.GetJobFailures | m.ControlJob


class Calls:
    """The handlers of one master."""

    def __init__(
        self,
        master: Master,
        members: Members | SingleWorkerMembership,
        open_connector: OpenConnector,
        certificate: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Keeps `open_connector`, which blocks: threads call it. `certificate`: for the status."""
        self.members = members
        self._master = master
        self.sources = SourceCalls(master, open_connector)
        self._certificate = certificate
        self._polls = EventPolls(master)
        self._walks = Walks()
        self._waiting = 0  # long polls
        self._jobs = JobCalls(master.load_jobs)
        master.load_jobs.follow(lambda: members.view)

    async def close(self) -> None:
        """Finishes adding sources, then ends walks and long polls."""
        await self.sources.close()
        await self._walks.close()
        self._master.load_jobs.release()
        await self._polls.close()

    def queues(self) -> dict[str, int]:
        return {"polls": self._waiting, "walks": len(self._walks)}

    def answer_nowait(self, call: c.Call, caller: Caller) -> m.Message | None:
        """Returns the reply if it needs no wait, else None. Raises AccessDenied in both cases."""
        permit(caller, call)
        if caller.prefix:
            self._check_reach(call, caller)
        now = _NOWAIT.get(type(call))
        return None if now is None else now(self, call)

    async def answer(self, call: c.Call, caller: Caller) -> m.Message:
        """Returns the reply to a call for which `answer_nowait` returned None."""
        later = _LATER.get(type(call))
        if later is None:
            raise ProtocolError(f"{type(call).__name__} is no call of a master")
        return await later(self, call, caller)

    def _check_reach(self, call: c.Call, caller: Caller) -> None:
        """Raises AccessDenied unless every ino of the call lies at or below the caller's prefix.
        Removed inos pass: the handler reports them."""
        for ino in inos_of(call):
            if not self._sees(caller, ino, gone=True):
                raise AccessDenied(f"inode {ino} is out of reach of this token")

    def _sees(self, caller: Caller, directory: int, *, gone: bool) -> bool:
        try:
            return caller.sees(self._master.path_of(directory))
        except Stale:
            return gone

    def _in_reach(self, events: c.Events, caller: Caller) -> c.Events:
        """Returns the events without the names that the caller must not see. The position still
        advances past those."""
        if not caller.prefix:
            return events
        seen = [self._seen(event, caller) for event in events.events]
        return msgspec.structs.replace(events, events=seen)

    def _seen(self, event: m.Invalidate, caller: Caller) -> m.Invalidate:
        entries = [entry for entry in event.entries if self._sees(caller, entry[0], gone=False)]
        return msgspec.structs.replace(event, entries=entries)

    def _check_namespace(self, namespace: NamespaceId) -> None:
        if namespace != self._master.namespace:
            raise NotFound("the master serves another namespace", remedy="mount again")

    async def _register(self, call: c.Register, caller: Caller) -> m.Message:
        view = await self.members.register(call)
        return c.Registered(
            self._master.namespace,
            view,
            self.members.heartbeat_s,
            store_run=self._master.run.number,
        )

    async def _member_event(
        self, call: c.Heartbeat | c.Leave | c.Drain | c.RemoveWorker, caller: Caller
    ) -> m.Message:
        answer = await self.members.handle(call)
        assert isinstance(answer, m.Message), "only a registration is answered by a view"
        return answer

    async def _view(self, call: c.GetView, caller: Caller) -> m.Message:
        return c.ViewReply(await self._poll(self.members.later_view(call.after, call.wait_s)))

    async def _workers(self, call: c.ListWorkers, caller: Caller) -> m.Message:
        return c.WorkerTable(self.members.view, self.members.rows())

    def _greet(self, call: c.Greeting) -> m.Message:
        if abs(call.protocol - c.PROTOCOL) > 1:
            raise ProtocolError(
                f"protocol {call.protocol} is too far from {c.PROTOCOL} of the master",
                remedy="install the same version of cachefs on both",
            )
        return c.Greeted(
            self._master.namespace,
            cachefs.__version__,
            seq=self._master.position,
            epoch=self.members.view.epoch,
            store_run=self._master.run.number,
        )

    def _lookup_now(self, call: m.Lookup) -> m.Message | None:
        self._check_namespace(call.namespace)
        return self._master.lookup_nowait(call.parent, call.name)

    async def _lookup(self, call: m.Lookup, caller: Caller) -> m.Message:
        return await self._master.lookup(call.parent, call.name)

    async def _getattr(self, call: m.GetAttr, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        return await self._master.getattr(call.ino)

    async def _list(self, call: m.ListDir, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        limit = max(1, min(call.limit, m.LIST_LIMIT))
        return await self._master.list_dir(call.ino, call.after, limit)

    async def _resolve(self, call: m.Resolve, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        return await self._master.resolve(call.path)

    async def _batch(self, call: c.Batch, caller: Caller) -> m.Message:
        _bounded(call.calls)
        answers: list[m.Found | m.Failure | None] = []
        for n, one in enumerate(call.calls):
            answers.append(self._found_now(one))
            if n % NOWAIT_AT_ONCE == NOWAIT_AT_ONCE - 1:
                await asyncio.sleep(0)
        turns = asyncio.Semaphore(ORIGIN_AT_ONCE)
        later = [
            self._found(turns, one)
            for one, answer in zip(call.calls, answers, strict=True)
            if answer is None
        ]
        found = iter(await asyncio.gather(*later))
        return c.Batched([answer or next(found) for answer in answers])

    def _found_now(self, call: m.Lookup | m.GetAttr) -> m.Found | m.Failure | None:
        if not isinstance(call, m.Lookup):
            return None
        try:
            self._check_namespace(call.namespace)
            return self._master.lookup_nowait(call.parent, call.name)
        except CacheFSError as err:
            return m.failure_of(err)

    async def _found(
        self, turns: asyncio.Semaphore, call: m.Lookup | m.GetAttr
    ) -> m.Found | m.Failure:
        try:
            self._check_namespace(call.namespace)
            async with turns:
                if isinstance(call, m.Lookup):
                    return await self._master.lookup(call.parent, call.name)
                return await self._master.getattr(call.ino)
        except CacheFSError as err:
            return m.failure_of(err)

    async def _locate(self, call: c.Locate, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        _bounded(call.inos)
        places: list[c.Place] = []
        for start in range(0, len(call.inos), NOWAIT_AT_ONCE):
            places += self._master.locate_many(call.inos[start : start + NOWAIT_AT_ONCE])
            await asyncio.sleep(0)
        return c.Located(places)

    async def _list_next(self, call: c.ListNext, caller: Caller) -> m.Message:
        """Lists the next directory, unless the caller must not see the names beside the file's
        directory."""
        self._check_namespace(call.namespace)
        directory = self._master.path_of(call.ino).rpartition(b"/")[0]
        if caller.sees(directory.rpartition(b"/")[0]):
            await self._master.list_next(call.ino)
        return m.Done()

    async def _report(self, call: c.ReportChanged, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        await self._master.report_changed(call.ino)
        return m.Done()

    async def _permit(self, call: c.PermitEviction, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        _bounded(call.contents)
        contents = list(map(c.content_of, call.contents))
        permission = await self._master.permit_eviction(contents)
        allowed = [content.name in permission.allowed for content in contents]
        return c.Permitted(allowed, permission.valid_for_s)

    async def _rules(self, call: c.RulesOf, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        _bounded(call.contents)
        rules = await self._master.rules_of([*map(c.content_of, call.contents)])
        places: dict[Rule, int] = {}
        which = [places.setdefault(rule, len(places)) for rule in rules]
        return c.Rules([*places], which)

    async def _walk(self, call: c.Walk, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        walked = await self._walked(call)
        return msgspec.structs.replace(walked, shows_unlisted=call.shows_unlisted)

    async def _walked(self, call: c.Walk) -> c.Walked:
        if call.cursor:
            return await self._walks.go_on(call.ino, call.cursor)
        if not call.known:
            return await self._walks.begin(call.ino, self._master.walk(call.ino), call.limit)
        unlisted: set[int] = set()
        files = self._master.known_files(call.ino, unlisted.add, shows_unlisted=call.shows_unlisted)
        return await self._walks.begin(call.ino, files, call.limit, unlisted)

    async def _events(self, call: c.GetEvents, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        if caller.may_join:  # a node's
            self._master.hear_position(call.after, call.store_run)
        events = await self._poll(self._polls.poll(call.after, call.wait_s))
        events = msgspec.structs.replace(events, store_run=self._master.run.number)
        return self._in_reach(events, caller)

    async def _poll(self, work: Awaitable[T]) -> T:
        if self._waiting >= MAX_POLLS:
            asyncio.ensure_future(work).cancel()
            raise Throttled(f"{MAX_POLLS} questions wait for news")
        self._waiting += 1
        try:
            return await work
        finally:
            self._waiting -= 1

    async def _source(self, call: SourceCall, caller: Caller) -> m.Message:
        return await self.sources.answer(call, caller)

    async def _set_policy(self, call: m.SetPolicy, caller: Caller) -> m.Message:
        """Sets a policy. A cancelled call may have set it; the caller can repeat the call."""
        self._check_namespace(call.namespace)
        policy = await self._master.set_policy(call.path, call.policy, call.unset, call.node)
        log.info("policies of %s were changed", shown(call.path))
        return m.PolicySet(policy)

    async def _policies(self, call: m.GetPolicies, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        return await self._master.policies_at(call.path)

    async def _job(self, call: _JobCall, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        return await self._jobs.answer(call, caller)

    async def _work(self, call: c.Work, caller: Caller) -> m.Message:
        return await self._poll(self._jobs.work(call))

    async def _start_sync(self, call: m.StartSync, caller: Caller) -> m.Message:
        self._check_namespace(call.namespace)
        return await self._master.start_sync(
            call.path, recursive=call.recursive, dry_run=call.dry_run
        )

    async def _sync(self, call: m.GetSync, caller: Caller) -> m.Message:
        """Returns or stops a sync. Raises NotFound also for a path that the caller must not see."""
        self._check_namespace(call.namespace)
        reply = await self._master.sync(call.sync, call.after, stop=False)
        if not caller.sees(reply.sync.path):
            raise NotFound(f"no such sync: {call.sync}")
        if call.stop:
            if not (caller.may_write or reply.sync.dry_run):
                raise AccessDenied("the token is for reading only")
            reply = await self._master.sync(call.sync, call.after, stop=True)
        return reply

    async def _status(self, call: c.MasterStatus, caller: Caller) -> m.Message:
        return c.MasterStatusReply(self.status())

    def status(self) -> dict[str, Any]:
        """Returns plain values for `cachefs status`."""
        view = self.members.view
        return {
            "version": cachefs.__version__,
            "protocol": c.PROTOCOL,
            "epoch": view.epoch,
            "settled": not view.before,
            "unsettled_since_s": self.members.unsettled_since_s,
            "members": len(view.members),
            "workers": self.members.counts(),
            "queues": self.queues(),
            "certificate": {**self._certificate},
            **self._master.status(),
        }

    def health_facts(self) -> dict[str, Any]:
        """Returns the status with each worker and each used quota, for `alarms`."""
        rows = self.members.rows()
        quotas = self._master.quotas(quota_used_bytes(rows))
        return {**self.status(), "workers": [*map(worker_facts, rows)], "quotas": quotas}


def _bounded(items: Sequence[object]) -> None:
    if len(items) > c.BATCH_LIMIT:
        raise ProtocolError(f"{len(items)} items in a call, at most {c.BATCH_LIMIT} are possible")


_NOWAIT: Final[dict[type, Callable[[Calls, Any], m.Message | None]]] = {
    c.Greeting: Calls._greet,
    m.Lookup: Calls._lookup_now,
}
_LATER: Final[dict[type, Callable[[Calls, Any, Caller], Awaitable[m.Message]]]] = {
    c.Register: Calls._register,
    c.Heartbeat: Calls._member_event,
    c.Leave: Calls._member_event,
    c.Drain: Calls._member_event,
    c.RemoveWorker: Calls._member_event,
    c.GetView: Calls._view,
    c.ListWorkers: Calls._workers,
    m.Lookup: Calls._lookup,
    m.GetAttr: Calls._getattr,
    m.ListDir: Calls._list,
    m.Resolve: Calls._resolve,
    c.Batch: Calls._batch,
    c.Locate: Calls._locate,
    c.ListNext: Calls._list_next,
    c.ReportChanged: Calls._report,
    c.PermitEviction: Calls._permit,
    c.RulesOf: Calls._rules,
    m.SetPolicy: Calls._set_policy,
    m.GetPolicies: Calls._policies,
    c.Walk: Calls._walk,
    c.GetEvents: Calls._events,
    m.StartSync: Calls._start_sync,
    m.GetSync: Calls._sync,
    c.MasterStatus: Calls._status,
    **dict.fromkeys(get_args(_JobCall), Calls._job),
    **dict.fromkeys(get_args(SourceCall), Calls._source),
    c.Work: Calls._work,
}
