"""Replies to operators: status, cache state, jobs, syncs, free, policies. Called by sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from cachefs.core import messages as m
from cachefs.core.errors import InUse, NotFound, ProtocolError, Stale, Unsupported
from cachefs.core.model import ContentId, Kind
from cachefs.core.policies import Policy, shown
from cachefs.core.services import MetadataService, PolicyService
from worker.server import job_answers as jobs

if TYPE_CHECKING:
    from worker.server.server import NodeServer

MESSAGES: Final[tuple[type[m.Message], ...]] = (
    m.Status, m.CacheState, m.Free, m.SetPolicy, m.GetPolicies, m.StartSync, m.GetSync, m.Freeze,
    m.Thaw, m.ListViews, *get_args(jobs.JobBody),
)  # fmt: skip


async def answer(server: NodeServer, body: m.Message) -> m.Message:
    """Returns the reply to one of `MESSAGES`. Raises the typed errors."""
    match body:
        case m.Status():
            return m.StatusReply(server.status())
        case m.CacheState():
            return await _cache_state(server, body)
        case m.Free():
            return await _free(server, body)
        case m.SetPolicy():
            return await _set_policy(server, body)
        case m.GetPolicies():
            return await _policies(server.service(body.namespace)).policies_at(body.path)
        case m.StartSync() | m.GetSync():
            return await _sync(server, body)
        case m.Freeze() | m.Thaw() | m.ListViews():
            return await _about_views(server, body)
    if isinstance(body, jobs.JobBody):
        return await jobs.answer_job(server.service(body.namespace), body)
    raise ProtocolError(f"unexpected {type(body).__name__}")


async def _about_views(server: NodeServer, body: m.Freeze | m.Thaw | m.ListViews) -> m.Message:
    views = server.views
    if views is None:
        raise Unsupported("this node has no views")
    match body:
        case m.Freeze():
            return await views.freeze(body.namespace, body.path, wait=body.wait)
        case m.Thaw():
            await views.thaw(body.namespace, body.path)
            return m.Done()
        case m.ListViews():
            return views.table(body.namespace)


async def _set_policy(server: NodeServer, body: m.SetPolicy) -> m.PolicySet:
    """Views that the change concerns are uncovered first, and built again by the new policy."""
    policies = _policies(server.service(body.namespace))
    if server.views is not None and not _only_pins(body):
        await server.views.uncover_path(body.namespace, body.path, "policy")
    return m.PolicySet(await policies.set_policy(body.path, body.policy, body.unset))


def _only_pins(body: m.SetPolicy) -> bool:
    """Returns whether a change of policy only pins, which no view shows."""
    return body.policy == Policy(pin=True) and not body.unset


async def _sync(server: NodeServer, body: m.StartSync | m.GetSync) -> m.SyncReply:
    """A sync is reported as ended only once no cover shows what it changed."""
    reply = await jobs.answer_sync(server.service(body.namespace), body)
    if server.views is not None and reply.sync.seq:
        await server.views.reach(body.namespace, reply.sync.seq)
    return reply


def _policies(service: MetadataService) -> PolicyService:
    """Returns the service if it has policies. Raises Unsupported."""
    if not isinstance(service, PolicyService):
        raise Unsupported("this namespace has no policies")
    return service


async def _cache_state(server: NodeServer, body: m.CacheState) -> m.CacheStateReply:
    service = server.service(body.namespace)
    cached = [await _cached_bytes(server, service, ino) for ino in body.inos[: m.LIST_LIMIT]]
    return m.CacheStateReply(cached)


async def _cached_bytes(server: NodeServer, service: MetadataService, ino: int) -> int:
    try:
        found = await service.getattr(ino)
    except Stale:
        return 0
    if found.inode is None or found.inode.kind is not Kind.FILE:
        return 0
    return await server.worker.cached_bytes(ContentId.of(service.namespace, found.inode))


async def _free(server: NodeServer, body: m.Free) -> m.Freed:
    service = server.service(body.namespace)
    found = await service.resolve(body.path)
    if found.inode is None:
        raise NotFound("no such file or directory", path=body.path.decode(errors="replace"))
    if isinstance(service, PolicyService):
        await _check_free(service, body.path)
    if server.views is not None:
        await server.views.uncover_path(body.namespace, body.path, "free")
    files = freed_bytes = busy = 0
    async for batch in service.known_files(found.inode.ino):
        contents = [
            ContentId.of(service.namespace, inode) for _, inode in batch if inode.kind is Kind.FILE
        ]
        freed = await server.worker.free(await _not_pinned(service, contents))
        files, freed_bytes, busy = (
            files + freed.files,
            freed_bytes + freed.bytes,
            busy + freed.busy_files,
        )
    return m.Freed(files, freed_bytes, busy)


async def _check_free(policies: PolicyService, path: bytes) -> None:
    """Raises InUse if the path is pinned."""
    at = await policies.policies_at(path)
    if at.policy.pin:
        raise InUse(
            f"pinned by {at.where['pin']}",
            path=shown(path),
            remedy="unpin it first: cachefs unpin PATH",
        )


async def _not_pinned(service: MetadataService, contents: list[ContentId]) -> list[ContentId]:
    """Returns the contents that no pin protects: paths below the freed one may be pinned."""
    if not isinstance(service, PolicyService) or not contents:
        return contents
    rules = await service.rules_of(contents)
    return [one for one, rule in zip(contents, rules, strict=True) if not rule.pinned]
