"""The sources of a node in a cluster: `cachefs.core.services.SourceServices` for `cachefs://host:port/path`,
and the connectors of their origins.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cachefs.core import messages as m
from cachefs.core.addresses import SCHEME, address_of, parse_cluster
from cachefs.core.errors import CacheFSError, InUse, NotADirectory, NotFound, Unreachable
from cachefs.core.model import Kind, NamespaceId, UfsSpec
from cachefs.core.services import MetadataService
from cachefs.core.two_generation_map import TwoGenerationMap
from connectors.base import Connector
from connectors.meter import Meter
from connectors.reach import Reach
from worker.membership.master_client import MasterClient, MasterUnreachable
from worker.names.lazy_connector import LazyConnector
from worker.names.namespace import RemoteNamespace

log = logging.getLogger(__name__)

MAX_CONNECTORS: Final = 1000
MAX_RETIRED: Final = 16
MAX_ATTACHED: Final = 1000
PATIENCE_S: Final = 5.0  # the timeout of an attach while the master is down
LOOK_S: Final = 0.5  # between looks at the master, after that time
FIND_S: Final = 40.0  # the timeout of a thread that requests a source from the master

OpenConnector = Callable[[UfsSpec, Meter], Connector]


class ClusterSources:
    """A master's namespace and its origins. `open_connector(spec, meter)` is called in threads
    and makes no network request. All methods belong to one event loop, unless they say otherwise.
    """

    def __init__(self, master: MasterClient, open_connector: OpenConnector) -> None:
        self._master = master
        self._open_connector = open_connector
        self._loop = asyncio.get_running_loop()
        self._namespaces: dict[NamespaceId, RemoteNamespace] = {}
        self._current: RemoteNamespace | None = None
        self._greeting: asyncio.Task[RemoteNamespace] | None = None
        self._connectors: dict[tuple[NamespaceId, str], LazyConnector] = {}  # the last used last
        self._connecting = threading.Lock()
        self._making = threading.Lock()
        self._made: dict[tuple[NamespaceId, str], tuple[UfsSpec, Connector]] = {}
        self._retired: list[Connector] = []  # reads in flight may use them
        self._closed = False
        self._meters: dict[str, Meter] = {}
        self._attached: TwoGenerationMap[bytes, m.Attached] = TwoGenerationMap(MAX_ATTACHED)

    async def open(self) -> RemoteNamespace:
        """Returns the master's namespace; the first call greets the master. Concurrent calls share
        an attempt; a call after a failure tries again. Raises what `MasterClient.ask` raises."""
        if self._current is not None and not self._current.replaced:
            return self._current
        if self._greeting is None:
            self._greeting = self._loop.create_task(self._greet())
        return await asyncio.shield(self._greeting)

    async def _greet(self) -> RemoteNamespace:
        try:
            namespace = await RemoteNamespace.open(self._master, on_unsure=self._look_again)
        finally:
            self._greeting = None
        known = self._namespaces.setdefault(namespace.namespace, namespace)
        if known is not namespace:  # the master serves a former namespace again
            await namespace.close()
        self._current = known
        return known

    async def on_namespace_changed(self, namespace: NamespaceId) -> None:
        """Called after a registration: switches new mounts to the master's current namespace.
        Existing mounts keep theirs, for which the master may reply with a failure."""
        if self._current is None or self._current.namespace == namespace:
            return
        self._current = self._namespaces.get(namespace)
        self._attached.clear()
        try:
            await self.open()
        except CacheFSError as err:  # the next attach tries again
            log.warning("cannot open the master's new namespace yet: %s", err.one_line())

    def heard_run(self, namespace: NamespaceId, store_run: int) -> None:
        """Called after a registration: records the run of the master's store."""
        known = self._namespaces.get(namespace)
        if known is not None:
            known.heard_run(store_run)

    async def attach(self, body: m.Attach) -> m.Attached:
        """Attaches a directory of the namespace. Idempotent. Raises NotFound, NotADirectory,
        BadConfig; InUse for another master's path; Unreachable if the master does not reply and the
        path was not attached before."""
        address, shown = parse_cluster(body.source.url)
        if address != address_of(self._master.url):
            raise InUse(f"this node belongs to the master at {self._master.url}, not to {address}")
        path = shown.encode("utf-8", "surrogateescape")
        former = self._attached.get(path)
        if former is None:
            attached = await self._attach_new(body.source.url, path)
        else:
            attached = await self._attach_again(body.source.url, path, former)
        self._attached.put(path, msgspec.structs.replace(attached, warning=""))
        return attached

    async def _attach_new(self, url: str, path: bytes) -> m.Attached:
        """Attaches a path for the first time. An origin may need all of its deadline; a master that
        is down gets `PATIENCE_S`, since an operator waits for the mount."""
        attaching = self._loop.create_task(self._attach(url, path))
        try:
            await asyncio.wait([attaching], timeout=PATIENCE_S)
            while not attaching.done() and not self._master.down:
                await asyncio.wait([attaching], timeout=LOOK_S)
            if attaching.done():
                return attaching.result()
            cause = f"the master at {self._master.url} gives no answer"
            raise Unreachable(cause, remedy="is `cachefs master` running there?")
        finally:
            attaching.cancel()

    async def _attach_again(self, url: str, path: bytes, former: m.Attached) -> m.Attached:
        """Attaches a path again. If the master is down or does not reply within `PATIENCE_S`,
        returns the former result with a warning, so that the mount does not wait."""
        attached = former
        try:
            async with asyncio.timeout(PATIENCE_S):
                attached = await self._attach(url, path)
                if not self._master.down:
                    return attached
        except (TimeoutError, MasterUnreachable):
            pass
        warning = f"the master at {self._master.url} gives no answer: serving what is known"
        return msgspec.structs.replace(attached, warning=warning)

    async def _attach(self, url: str, path: bytes) -> m.Attached:
        namespace = await self.open()
        found = await namespace.resolve(path)
        if found.inode is None:
            raise NotFound(
                "no such directory in the cluster",
                path=url,
                remedy="`cachefs ufs ls` shows what is there, `cachefs ufs add` adds a source",
            )
        if found.inode.kind is not Kind.DIRECTORY:
            raise NotADirectory("not a directory", path=url)
        return m.Attached(namespace.namespace, found.inode)

    def service(self, namespace: NamespaceId) -> MetadataService:
        """Returns the service of an attached namespace. Raises NotFound."""
        return self._opened(namespace)

    def _opened(self, namespace: NamespaceId) -> RemoteNamespace:
        known = self._namespaces.get(namespace)
        if known is None:
            raise NotFound("no such namespace here", remedy="attach its source first")
        return known

    # ---- origins ----

    def connector(self, namespace: NamespaceId, ufs: str) -> Connector:
        """Returns a connector without waiting; its first request looks up the source. Forgets the
        one that was unused for longest where there are too many, as sources come and go.
        Thread-safe. Raises NotFound for a namespace that is not attached."""
        find = functools.partial(self._find, self._opened(namespace), ufs)
        with self._connecting:
            known = self._connectors.pop((namespace, ufs), None) or LazyConnector(find)
            self._connectors[namespace, ufs] = known
            oldest = next(iter(self._connectors))
            has_too_many = len(self._connectors) > MAX_CONNECTORS
            forgotten = self._connectors.pop(oldest) if has_too_many else None
        if forgotten is not None:
            _, made = self._made.pop(oldest, (None, None))
            forgotten.look_again()  # who still has it uses the new one
            self._meters.pop(oldest[1], None)
            if made is not None:
                self._retire(made)
        return known

    def _retire(self, connector: Connector) -> None:
        """Closes a connector after some others: reads in flight may use it."""
        self._retired.append(connector)
        if len(self._retired) > MAX_RETIRED:
            self._retired.pop(0).close()

    def _look_again(self) -> None:
        """Has every connector look its source up before its next request: an operator may have
        changed the options of a source."""
        for connector in [*self._connectors.values()]:
            connector.look_again()

    def _find(self, namespace: RemoteNamespace, ufs: str) -> Connector:
        """Requests a source from the master and returns its connector. Runs in a thread."""
        finding = asyncio.run_coroutine_threadsafe(namespace.find_ufs(ufs), self._loop)
        try:
            spec = finding.result(FIND_S)
        except concurrent.futures.CancelledError as err:
            raise Unreachable("this node is ending") from err
        except TimeoutError as err:
            finding.cancel()
            raise Unreachable(f"no reply from the master about the source {ufs}") from err
        return self._make(namespace.namespace, ufs, spec)

    def _make(self, namespace: NamespaceId, ufs: str, spec: UfsSpec) -> Connector:
        """Returns the connector of a source, a new one if its options changed. Runs in a thread."""
        with self._making:
            former = self._made.get((namespace, ufs))
            if former is not None and former[0] == spec:
                return former[1]
            connector = self._open_connector(spec, self._meter(ufs))
            self._made[namespace, ufs] = spec, connector
            if former is not None:
                log.info("the options of source %s changed", spec.url)
                self._retire(former[1])
        if self._closed:
            connector.close()
            raise Unreachable("this node is ending")
        return connector

    def _meter(self, ufs: str) -> Meter:
        return self._meters.setdefault(ufs, Meter())

    def reach(self, ufs: str) -> Reach:
        """Returns the way from this node to the origin of a source."""
        known = self._meters.get(ufs)
        return known.reach if known is not None else Reach()  # no request was sent yet

    def status(self) -> list[dict[str, Any]]:
        """Returns plain values, one row per namespace."""
        origins = {
            ufs: msgspec.to_builtins(meter.snapshot()) for ufs, meter in [*self._meters.items()]
        }
        return [
            {
                "source": SCHEME + address_of(self._master.url),
                "origins": origins,
                **namespace.status(),
            }
            for namespace in self._namespaces.values()
        ]

    async def close(self) -> None:
        """Ends calls, streams and connectors. Idempotent."""
        if self._greeting is not None:
            self._greeting.cancel()
            await asyncio.gather(self._greeting, return_exceptions=True)
        for namespace in self._namespaces.values():
            await namespace.close()
        self._closed = True
        for late in [*self._connectors.values()]:
            late.close()
        for connector in [*(made for _, made in [*self._made.values()]), *self._retired]:
            connector.close()
        self._connectors.clear()
        self._retired.clear()
