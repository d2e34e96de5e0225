"""A node's worker as a process: `python -I -m cachefs.launcher.node`, a `WorkerSpec` on standard
input. A member of one cluster: a cache of several tiers for the mounts of this machine (unix
socket), and for its peers (HTTP).

Says `Started` on standard output once it is a member, or why it never will be. Ends on SIGTERM,
SIGINT and SIGHUP; one that does not `stay` ends with the last mount, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

import cachefs
from cachefs.client.credentials import (
    certificate_facts,
    client_context,
    presents_to,
    server_context,
)
from cachefs.client.token_file import TokenFile
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import check_listen, join_address, parse_address
from cachefs.core.addresses import SCHEME, address_of
from cachefs.core.errors import AccessDenied, BadConfig, CacheFSError, Unavailable
from cachefs.core.model import ContentId, NamespaceId, Origin, UfsSpec
from cachefs.core.placement import Member, View, block_count, share_of
from cachefs.core.specs import Started, WorkerSpec
from cachefs.core.tiers import TierSpec, parse_tiers
from cachefs.core.units import format_size
from cachefs.launcher import allocator, collecting, gil_home, kept, worker_id
from cachefs.launcher.cluster import node_dir
from cachefs.launcher.directories import check_own
from cachefs.launcher.logs import log_to
from cachefs.launcher.peer_calls import PeerCalls
from cachefs.launcher.ready import ReadyPipe
from cachefs.launcher.reserve_keeper import keep_reserve
from cachefs.launcher.serving import keep_fresh, limit_end, quit_now, stop_event
from cachefs.launcher.state import (
    LOG_NAME,
    SOCKET_NAME,
    Pointer,
    private_dir,
    remove_pointer,
    write_pointer,
)
from cachefs.launcher.weighing import Weighing, weight_of
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from worker.cache.cache import Tiers
from worker.cache.status import facts
from worker.fill.source import OriginSource
from worker.loads.loader import Loader
from worker.membership.master_client import MasterClient
from worker.membership.member import Condition, Membership
from worker.metrics import exposition
from worker.migration.migration import Migration
from worker.names.sources import ClusterSources
from worker.peers.ring import Ring
from worker.peers.server import Handlers, PeerServer
from worker.peers.source import ClusterSource, in_loop
from worker.runtime.machine import available_memory
from worker.runtime.memory import MemoryBudget, budget
from worker.runtime.tasks import Tasks
from worker.server.server import NodeServer
from worker.tier.config import WorkerConfig
from worker.tier.disk import Shared
from worker.tier.quotas import Quotas

log = logging.getLogger("cachefs.node")

DRAIN_S: Final = 10.0
WORK_S: Final = 10.0  # for a master's answer about load tasks
MOVING_THREADS: Final = ("send-", "ask-", "load-")  # names of those that mostly move bytes


class Node:
    """One worker from its start to its end."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Reads the files of its security. Raises BadConfig, AccessDenied."""
        self._spec = spec
        self._tiers: list[TierSpec] = parse_tiers(spec.tiers)
        # The command `mount` has judged the directory of the worker that clients start again.
        trust = spec.trust_directories or not spec.stays
        for tier in self._tiers:
            check_own(tier.path, trust=trust)
        self._directory = node_dir(spec)
        self._tokens = TokenFile(spec.security.token_file)
        self._peers_ssl = client_context(spec.security, "https://")
        self._server_ssl = server_context(spec.security)
        self._certificate = certificate_facts(spec.security)
        self._host, self._port = parse_address(spec.listen, 0)
        check_listen(self._host, has_tokens=not self._tokens.is_open)
        self._presents_to = presents_to(spec.security)
        paths = [tier.path for tier in self._tiers]
        self._known_id = worker_id.read(paths)
        self.id = self._known_id or worker_id.draw()
        self._tasks = Tasks()
        self._cache: Tiers
        self._source: ClusterSource
        self._server: NodeServer
        self._members: Membership
        self._weighing: Weighing
        self._migration: Migration | None = None  # none before this node has joined
        self._loader: Loader | None = None

    async def run(self, ready: ReadyPipe) -> None:
        """Until nobody needs it. Raises the typed error of a start that failed; nothing is open
        then."""
        stop = stop_event()
        async with contextlib.AsyncExitStack() as stack:
            master = self._master = await stack.enter_async_context(self._client())
            self._sources = ClusterSources(master, self._connector)
            stack.push_async_callback(self._sources.close)
            await self._sources.open()
            await self._start_cache(stack)
            self._server = NodeServer(
                self._cache,
                self._sources,
                stays=self._spec.stays,
                files_ahead=self._spec.files_ahead,
                deadline_s=self._spec.origin_deadline_s,
            )
            self._server.more_status = self._more_status
            url = await self._start_peers(stack)
            await self._join(stack, url)
            await self._serve(ready, stop, url)

    # ---- parts -----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[MasterClient]:
        spec = self._spec
        context = client_context(spec.security, spec.master)
        client = MasterClient(
            spec.master,
            token=self._tokens.headers,
            ssl_context=context,
            presents_to=self._presents_to,
        )
        try:
            yield client
        finally:
            await client.close()

    def _connector(self, source: UfsSpec, meter: Meter) -> Connector:
        return open_connector(source, deadline_s=self._spec.origin_deadline_s, meter=meter)

    async def _start_cache(self, stack: contextlib.AsyncExitStack) -> None:
        self._ring = Ring(self.id)
        self._source = ClusterSource(
            self._ring,
            OriginSource(self._sources.connector),
            refresh=in_loop(asyncio.get_running_loop(), self._refresh),
            headers=self._tokens.headers,
            ssl_context=self._peers_ssl,
            presents_to=self._presents_to,
        )
        stack.callback(self._source.close)
        limit_bytes = budget(self._spec.memory_limit_bytes, available_memory())
        self._cache = await Tiers.start(
            self._config(),
            self._tiers,
            self._sources.service,
            self._sources.connector,
            source=self._source,
            shared=Shared(
                MemoryBudget(limit_bytes),
                self._is_owned,
                Quotas(self._share),
                self._came,
                self._owners_changed,
            ),
        )
        stack.push_async_callback(self._cache.close)
        if not self._known_id:
            paths = [tier.path for tier in self._tiers]
            await self._cache.at_disk(worker_id.write, paths, self.id)

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
        """Of the bytes that all nodes together may have below a quota: as of the blocks."""
        return share_of(self._ring.view.members, self.id)

    def _is_owned(self, key: bytes, size: int, replicas: int) -> bool:
        ino, blocks = ContentId.of_key(key).ino, range(block_count(size))
        return any(self._ring.owns(ino, block, replicas) for block in blocks)

    def _came(self, key: bytes, size_bytes: int, replicas: int) -> None:
        if self._migration is not None:
            self._migration.came(key, size_bytes, replicas)

    def _owners_changed(self) -> None:
        if self._migration is not None:
            self._migration.owners_changed()

    async def _start_peers(self, stack: contextlib.AsyncExitStack) -> str:
        """Listens to peers; the URL at which they reach this node."""
        status = self._server.status
        server = self._peer_server = PeerServer(
            self._cache.serving,
            self._ring,
            Handlers(self._drop, status, self._offered, exposition(status)),
            refresh=self._refresh,
            authorize=None if self._tokens.is_open else self._tokens.check,
            ssl_context=self._server_ssl,
        )
        try:
            port = await server.start(self._host, self._port)
        except OSError as err:
            raise BadConfig(
                f"cannot listen on {self._spec.listen}: {err.strerror or err}",
                remedy="choose another --listen",
            ) from err
        stack.push_async_callback(server.stop)
        if self._spec.advertise:
            return _with_port(self._spec.advertise, port)
        scheme = "http" if self._server_ssl is None else "https"
        return f"{scheme}://{join_address(_reached_at(self._host), port)}"

    async def _join(self, stack: contextlib.AsyncExitStack, url: str) -> None:
        """Becomes a member. Raises as `Membership.start`."""
        spec = self._spec
        capacity_bytes = self._capacity_bytes()
        self._weighing = Weighing(capacity_bytes, time.monotonic())
        calls = PeerCalls(self._tokens.headers, self._peers_ssl, self._presents_to)
        stack.push_async_callback(calls.close)
        self._members = Membership(
            self._master,
            c.Register(
                self.id,
                url,
                self._weight(),
                host=socket.gethostname(),
                capacity_bytes=capacity_bytes,
                version=cachefs.__version__,
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
            ask_peer=calls.ask,
            refresh_view=self._refresh,
            free_bytes=self._free_bytes,
            on_settled=lambda epoch: self._members.beat_soon(),
            bytes_per_s=spec.migration_bytes_s,
        )
        self._migration.owners_changed()  # what it heard before
        stack.push_async_callback(self._tasks.close)
        try:
            await self._members.start()
        except AccessDenied as err:
            if self._weight() > 0:
                raise
            log.info("this node is no member, and reads from the origins: %s", err.cause)
            return
        stack.push_async_callback(self._leave)
        self._tasks.start(self._migration.run())
        if spec.weight:  # what is to own nothing has nothing to load
            loader = self._loader = Loader(self._cache.loading, self._work, self.id)
            stack.push_async_callback(loader.close)
            loader.start()

    async def _work(self, call: c.Work) -> c.Worked:
        return await self._master.ask(call, c.Worked, answer_s=call.wait_s + WORK_S, reach_s=0)

    async def _leave(self) -> None:
        """What owns data and just ends is expected back: its blocks stay its own until it is given
        up as lost. What was drained, or owns nothing, says that it leaves."""
        await self._members.stop(leave=self._members.draining or not self._weight())

    # ---- its life --------------------------------------------------------------------------------

    async def _serve(self, ready: ReadyPipe, stop: asyncio.Event, url: str) -> None:
        server = self._server
        socket_path = self._directory / SOCKET_NAME
        server.listen(socket_path)
        pointer = Pointer(str(socket_path), os.getpid(), self._spec.stays, url)
        write_pointer(self._directory, pointer)
        source = f"{SCHEME}{address_of(self._spec.master)}"
        kept.note(self._directory, source, [tier.path for tier in self._tiers])
        log.info("worker %s at %s, a member of %s", self.id, url, self._spec.master)
        collecting.settle()
        ready.say(Started(os.getpid(), url=url))
        beside = [
            asyncio.ensure_future(_stop_when(stop, server)),
            asyncio.ensure_future(gil_home.keep_together(*MOVING_THREADS)),
            asyncio.ensure_future(keep_reserve(self._spec.home)),
            asyncio.ensure_future(keep_fresh(self._tokens)),
        ]
        try:
            await server.serve()
        finally:
            limit_end()
            for task in beside:
                task.cancel()
            # Nobody may find a server that is ending: the pointer goes first, then the sessions.
            remove_pointer(self._directory, os.getpid())
            socket_path.unlink(missing_ok=True)
            await server.drain(0.0 if self._spec.stays else DRAIN_S)
            log.info("stopped")

    def _on_view(self, view: View) -> None:
        self._source.on_view(view)
        if self._migration is not None:
            self._migration.on_view(view)
        self._tasks.start(self._cache.ownership_changed())

    def _on_namespace(self, namespace: NamespaceId) -> None:
        self._tasks.start(self._sources.changed_namespace(namespace))

    async def _refresh(self) -> None:
        await self._members.refresh()

    async def _locate(self, namespace: NamespaceId, ino: int) -> Origin:
        return await self._sources.service(namespace).locate(ino)

    # ---- what peers ask --------------------------------------------------------------------------

    async def _drop(self, contents: list[ContentId]) -> c.Dropped:
        freed = await self._cache.free(contents)
        return c.Dropped(freed.files, freed.bytes, freed.busy_files)

    async def _offered(self, offer: c.Offer) -> None:
        if self._migration is None:
            raise Unavailable("this worker is just joining")
        self._migration.offered(offer)
        giver = Member(offer.worker, offer.url, 0.0)
        for key, block in offer.blocks:
            self._source.add_holder(key, block, giver)

    # ---- what it says of itself ------------------------------------------------------------------

    def _weight(self) -> float:
        given = self._spec.weight
        return given if given >= 0 else weight_of(self._capacity_bytes())

    def _capacity_bytes(self) -> int:
        """Of the tiers that are there; those in memory as far as its limit lets them."""
        return int(self._cache.status()["limit_bytes"])

    def _free_bytes(self) -> int:
        """Room that can be used: a disk that is full, or fails, has none, whatever its limit."""
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
        told = {**facts(status), "certificate": self._certificate}
        return Condition(settled, capacity_bytes, int(status["used_bytes"]), told)

    async def _reweigh(self, capacity_bytes: int) -> None:
        log.info("the capacity is %s now", format_size(capacity_bytes))
        try:
            await self._members.reweigh(weight_of(capacity_bytes), capacity_bytes)
        except CacheFSError as err:
            log.warning("the master does not hear of the capacity: %s", err.one_line())

    def _more_status(self, cache: Mapping[str, Any]) -> dict[str, Any]:
        """This node's part in the cluster, beside what every server says; plain values."""
        if self._migration is None:
            return {}
        return {
            "member": self._members.status(),
            "peers": self._source.status(),
            "serving": self._peer_server.status(),
            "migration": self._migration.status(),
            "loading": self._loader.status() if self._loader is not None else {},
        }


async def _stop_when(stop: asyncio.Event, server: NodeServer) -> None:
    await stop.wait()
    server.request_stop("asked to end")


def _reached_at(host: str) -> str:
    """The address of this machine for others; a server on every address is reached by its name."""
    return socket.getfqdn() if host in ("", "0.0.0.0", "::") else host


def _with_port(url: str, port: int) -> str:
    """An advertised URL without a port gets that of the listening socket."""
    scheme, _, address = url.partition("://")
    host, given = parse_address(address, port)
    return f"{scheme}://{join_address(host, given or port)}"


def main() -> int:
    """Entry point of the process."""
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WorkerSpec)
    ready = ReadyPipe(spec.launch_fds)
    allocator.settle()
    try:
        log_dir = private_dir(node_dir(spec) / LOG_NAME)
        log_to(str(Path(log_dir) / "server.log"), spec.log_level, to_stderr=spec.log_to_stderr)
        asyncio.run(Node(spec).run(ready))
    except CacheFSError as err:
        log.error("%s", err.one_line())
        ready.say(Started(os.getpid(), failure=m.failure_of(err)))
        return 1
    return 0


if __name__ == "__main__":
    quit_now(main())
