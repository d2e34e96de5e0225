"""The composition of a worker in a cluster: creates its parts, joins, and passes on changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import cachefs
from cachefs.core import cluster as c
from cachefs.core.access import Caller, join_address, parse_address
from cachefs.core.errors import AccessDenied, CacheFSError, Unavailable
from cachefs.core.model import ContentId, NamespaceId, Origin, UfsSpec
from cachefs.core.placement import Member, View, block_count, share_of
from cachefs.core.specs import WorkerSpec
from cachefs.core.tiers import TierSpec
from cachefs.core.units import format_size
from cachefs.network.checked_connect import ListenerCheck, accept_any_listener
from cachefs.network.error_causes import cannot_listen
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from connectors.reach import Reach
from worker.cache.cache import Cache
from worker.cache.status import facts
from worker.fill.source import OriginSource
from worker.loads.loader import Loader
from worker.membership.capacity_report import CapacityReport, weight_of
from worker.membership.master_client import MasterClient
from worker.membership.member import Condition, Membership
from worker.metrics import exposition
from worker.migration.migration import Migration
from worker.names.sources import ClusterSources
from worker.peers.ownership_map import OwnershipMap
from worker.peers.server import Handlers, PeerServer
from worker.peers.source import ClusterSource, in_loop
from worker.runtime.memory import MemoryBudget, budget
from worker.runtime.process_limits import available_memory
from worker.runtime.tasks import Tasks
from worker.server.server import NodeServer
from worker.tier.config import WorkerConfig
from worker.tier.contents import NodeParts
from worker.tier.quotas import Quotas
from worker.views.views import Views

log = logging.getLogger("cachefs.node")

TRY_LIMIT_S: Final = 5.0  # of a request over a way that was cut
WORK_S: Final = 10.0  # the timeout of the master's reply about load tasks, beyond its long poll

AskPeer = Callable[[str, c.Have | c.Offer | c.Drop], Awaitable[c.Answer]]


@dataclass(frozen=True)
class Proof:
    """The credentials of a node, and its checks of others. `headers` present its token and are read
    at each request. `authorize`: see `PeerServer`; None: callers need no token."""

    headers: Mapping[str, str]
    authorize: Callable[[str | None], Caller] | None = None
    master_ssl: ssl.SSLContext | None = None
    peers_ssl: ssl.SSLContext | None = None
    server_ssl: ssl.SSLContext | None = None
    presents_to: ListenerCheck = accept_any_listener
    certificate: Mapping[str, Any] = field(default_factory=dict)


class Node:
    """A worker of a cluster. Belongs to one event loop; the stack of `start` closes its parts."""

    def __init__(
        self,
        id: str,
        spec: WorkerSpec,
        tiers: Sequence[TierSpec],
        proof: Proof,
        ask_peer: AskPeer,
        remember: Callable[[str], object] | None,
    ) -> None:
        """`ask_peer` sends a control call to another worker. `remember` stores the id in the tiers
        and blocks; None: they have it."""
        self.id = id
        self._spec = spec
        self._tiers = tiers
        self._proof = proof
        self._ask_peer = ask_peer
        self._remember = remember
        self._listen = parse_address(spec.listen, 0)
        self._tasks = Tasks()
        self._is_trying = False  # whether a way that is cut is there again
        self.server: NodeServer
        self._cache: Cache
        self._source: ClusterSource
        self._members: Membership
        self._weighing: CapacityReport
        self._migration: Migration | None = None  # None before this node joins
        self._loader: Loader | None = None

    async def start(self, stack: contextlib.AsyncExitStack) -> str:
        """Opens the cache, listens to peers and joins the cluster. Returns the URL at which peers
        reach this node. Raises the typed error of a start that failed."""
        self._master = MasterClient(
            self._spec.master,
            token=self._proof.headers,
            ssl_context=self._proof.master_ssl,
            presents_to=self._proof.presents_to,
        )
        stack.push_async_callback(self._master.close)
        self._sources = ClusterSources(self._master, self._connector)
        stack.push_async_callback(self._sources.close)
        await self._sources.open()
        await self._start_cache(stack)
        views = Views(self._cache.views, self._sources.service, node=self.id)
        stack.push_async_callback(views.close)
        self.server = NodeServer(
            self._cache,
            self._sources,
            stays=self._spec.stays,
            files_ahead=self._spec.files_ahead,
            deadline_s=self._spec.origin_deadline_s,
            views=views,
        )
        self.server.more_status = self._more_status
        url = await self._start_peers(stack)
        await self._join(stack, url)
        return url

    # ---- parts ----

    def _connector(self, source: UfsSpec, meter: Meter) -> Connector:
        return open_connector(source, deadline_s=self._spec.origin_deadline_s, meter=meter)

    async def _start_cache(self, stack: contextlib.AsyncExitStack) -> None:
        self._ring = OwnershipMap(self.id)
        self._source = ClusterSource(
            self._ring,
            OriginSource(self._sources.connector),
            refresh=in_loop(asyncio.get_running_loop(), self._refresh),
            reach=self._reach,
            on_detour=self._try_origin,
            headers=self._proof.headers,
            ssl_context=self._proof.peers_ssl,
            presents_to=self._proof.presents_to,
        )
        stack.callback(self._source.close)
        limit_bytes = budget(self._spec.memory_limit_bytes, available_memory())
        self._cache = await Cache.start(
            self._config(),
            self._tiers,
            self._sources.service,
            self._sources.connector,
            source=self._source,
            shared=NodeParts(
                MemoryBudget(limit_bytes),
                self._is_owned,
                Quotas(self._share),
                self._on_filled,
                self._owners_changed,
            ),
        )
        stack.push_async_callback(self._cache.close)
        if self._remember is not None:
            await self._cache.at_disk(self._remember, self.id)

    def _config(self) -> WorkerConfig:
        spec = self._spec
        return WorkerConfig(
            cache_dir=self._tiers[0].path,
            limit_bytes=self._tiers[0].limit_bytes,
            admission=spec.admission,
            eviction=spec.eviction,
            idle_after_s=spec.idle_after_s,
            origin_deadline_s=spec.origin_deadline_s,
            memory_limit_bytes=spec.memory_limit_bytes,
        )

    def _share(self) -> float:
        """Returns this node's share of a quota, which equals its share of the blocks."""
        return share_of(self._ring.view.members, self.id)

    def _is_owned(self, key: bytes, size: int, replicas: int) -> bool:
        return self._ring.owns_any(ContentId.of_key(key).ino, block_count(size), replicas)

    def _on_filled(self, key: bytes, size_bytes: int, replicas: int) -> None:
        if self._migration is not None:
            self._migration.came(key, size_bytes, replicas)

    def _owners_changed(self) -> None:
        if self._migration is not None:
            self._migration.owners_changed()

    async def _start_peers(self, stack: contextlib.AsyncExitStack) -> str:
        """Listens to peers and returns the URL at which they reach this node."""
        status = self.server.status
        server = self._peer_server = PeerServer(
            self._cache.serving,
            self._ring,
            Handlers(self._drop, status, self._offered, exposition(status)),
            refresh=self._refresh,
            reach=self._reach,
            authorize=self._proof.authorize,
            ssl_context=self._proof.server_ssl,
        )
        try:
            port = await server.start(*self._listen)
        except OSError as err:
            raise cannot_listen(self._spec.listen, err) from err
        stack.push_async_callback(server.stop)
        if self._spec.advertise:
            return _with_port(self._spec.advertise, port)
        scheme = "http" if self._proof.server_ssl is None else "https"
        return f"{scheme}://{join_address(_reachable_host(self._listen[0]), port)}"

    async def _join(self, stack: contextlib.AsyncExitStack, url: str) -> None:
        """Joins the cluster. Raises the errors of `Membership.start`."""
        spec = self._spec
        capacity_bytes = self._capacity_bytes()
        self._weighing = CapacityReport(capacity_bytes, time.monotonic())
        self._members = Membership(
            self._master,
            c.Register(
                self.id,
                url,
                self._weight(),
                host=socket.gethostname(),
                capacity_bytes=capacity_bytes,
                version=cachefs.__version__,
                process=secrets.randbits(63) or 1,
            ),
            condition=self._condition,
            on_view=self._on_view,
            on_namespace=self._on_namespace,
            on_store_run=self._sources.heard_run,
        )
        self._migration = Migration(
            self.id,
            url,
            self._cache.serving,
            locate=self._locate,
            ask_peer=self._ask_peer,
            refresh_view=self._refresh,
            free_bytes=self._free_bytes,
            on_settled=lambda epoch: self._members.send_heartbeat_soon(),
            bytes_per_s=spec.migration_bytes_s,
        )
        self._migration.owners_changed()  # for calls before this object existed
        stack.push_async_callback(self._tasks.close)
        try:
            await self._members.start()
        except AccessDenied as err:
            if self._weight() > 0:
                raise
            log.info("not a member of the cluster, reading from the origins: %s", err.cause)
            return
        stack.push_async_callback(self._leave)
        self._tasks.start(self._migration.run())
        if spec.weight:  # a worker of weight 0 owns no blocks, so it has nothing to load
            loader = self._loader = Loader(self._cache.loading, self._work, self.id)
            stack.push_async_callback(loader.close)
            loader.start()

    async def _work(self, call: c.Work) -> c.Worked:
        return await self._master.ask(call, c.Worked, answer_s=call.wait_s + WORK_S, reach_s=0)

    async def _leave(self) -> None:
        """Stops the membership. Only a drained worker, or one of weight 0, sends `Leave`; another
        one is expected back, and owns its blocks until the master declares it lost."""
        await self._members.stop(leave=self._members.draining or not self._weight())

    def _on_view(self, view: View) -> None:
        self._source.on_view(view)
        if self._migration is not None:
            self._migration.on_view(view)
        self._tasks.start(self._cache.ownership_changed())

    def _on_namespace(self, namespace: NamespaceId) -> None:
        self._tasks.start(self._sources.on_namespace_changed(namespace))

    async def _refresh(self) -> None:
        await self._members.refresh()

    def _reach(self, origin: Origin) -> Reach:
        return self._sources.reach(origin.ufs)

    def _try_origin(self, origin: Origin) -> None:
        """Starts a request over a way that is cut, now and then, one at a time."""
        if not self._is_trying and self._reach(origin).may_try(time.monotonic()):
            self._is_trying = True
            self._tasks.start(self._tried(origin))

    async def _tried(self, origin: Origin) -> None:
        try:
            await asyncio.to_thread(self._source.try_origin, origin, TRY_LIMIT_S)
        finally:
            self._is_trying = False

    async def _locate(self, namespace: NamespaceId, ino: int) -> Origin:
        return await self._sources.service(namespace).locate(ino)

    # ---- requests of peers ----

    async def _drop(self, contents: list[ContentId]) -> c.Dropped:
        freed = await self._cache.free(contents)
        return c.Dropped(freed.files, freed.bytes, freed.busy_files)

    async def _offered(self, offer: c.Offer) -> None:
        if self._migration is None:
            raise Unavailable("this worker has not joined yet")
        self._migration.offered(offer)
        giver = Member(offer.worker, offer.url, 0.0)
        for key, block in offer.blocks:
            self._source.add_holder(key, block, giver)

    # ---- status ----

    def _weight(self) -> float:
        given = self._spec.weight
        return given if given >= 0 else weight_of(self._capacity_bytes())

    def _capacity_bytes(self) -> int:
        """Returns the capacity of the tiers in use; the memory limit bounds those in memory."""
        return int(self._cache.status()["limit_bytes"])

    def _free_bytes(self) -> int:
        """Returns the usable free space. A tier whose disk is full or fails has none."""
        status = self._cache.status()
        usable = [tier for tier in status["tiers"] if tier["state"] == "normal"]
        room = sum(max(0, int(tier["limit_bytes"]) - int(tier["used_bytes"])) for tier in usable)
        return min(room, max(0, int(status["limit_bytes"]) - int(status["used_bytes"])))

    def _condition(self) -> Condition:
        status = self._cache.status()
        settled = 0 if self._migration is None else self._migration.settled
        capacity_bytes = int(status["limit_bytes"])
        if self._spec.weight < 0 and self._weighing.handle(capacity_bytes, time.monotonic()):
            self._tasks.start(self._reweigh(capacity_bytes))
        reported = {**facts(status), "certificate": self._proof.certificate}
        return Condition(settled, capacity_bytes, int(status["used_bytes"]), reported)

    async def _reweigh(self, capacity_bytes: int) -> None:
        log.info("the capacity is %s now", format_size(capacity_bytes))
        try:
            await self._members.reweigh(weight_of(capacity_bytes), capacity_bytes)
        except CacheFSError as err:
            self._weighing.failed(time.monotonic())
            log.warning("could not report the new capacity to the master: %s", err.one_line())

    def _more_status(self, cache: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the status of the cluster's parts, for `NodeServer.status`; plain values."""
        if self._migration is None:
            return {}
        return {
            "member": self._members.status(),
            "peers": self._source.status(),
            "serving": self._peer_server.status(),
            "migration": self._migration.status(),
            "loading": self._loader.status() if self._loader is not None else {},
        }


def _reachable_host(host: str) -> str:
    """Returns the address of this machine for peers; its host name if it listens on all."""
    return socket.getfqdn() if host in ("", "0.0.0.0", "::") else host


def _with_port(url: str, port: int) -> str:
    """Returns an advertised URL, with the port of the listening socket if it has none."""
    scheme, _, address = url.partition("://")
    host, given = parse_address(address, port)
    return f"{scheme}://{join_address(host, given or port)}"
