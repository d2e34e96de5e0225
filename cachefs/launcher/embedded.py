"""The embedded server: master and worker of one node in one process, on a unix socket only.

`python -I -m cachefs.launcher.embedded` with a `ServerSpec` on standard input. Writes `Started` to
standard output when it is ready or cannot start. Ends after the last mount, on a Detach request and
on a stop signal (SIGTERM, SIGINT, SIGHUP).
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cachefs.core import messages as m
from cachefs.core.errors import InUse, NoSpace, NotFound, Unavailable
from cachefs.core.model import ROOT_INO, NamespaceId, UfsSpec
from cachefs.core.services import MetadataService
from cachefs.core.specs import ServerSpec, Started
from cachefs.core.tiers import TierSpec
from cachefs.core.units import format_duration
from cachefs.launcher import cache_record, gc_tuning, gil_affinity, malloc_tuning
from cachefs.launcher.admin_site import Admin, admin_site
from cachefs.launcher.logs import log_to
from cachefs.launcher.metrics_site import metrics_site
from cachefs.launcher.ready import ReadyPipe
from cachefs.launcher.reserve_keeper import keep_reserve
from cachefs.launcher.serving import STOP_SIGNALS, forget_pointer, limit_shutdown, quit_now
from cachefs.launcher.state import PINNED_NAME, Pointer, StateHome, write_pointer
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from master.namespace import Master
from worker.cache.cache import Cache
from worker.cache.loading import CacheLoading
from worker.loads.loader import Loader
from worker.server.server import NodeServer
from worker.tier.config import WorkerConfig
from worker.views.views import Views

log = logging.getLogger("cachefs.server")

LOCK_WAIT_S = 10.0  # for a predecessor that is ending
DRAIN_S = 10.0
WORKER = "local"  # id of the only worker


class Source:
    """An attached source: its master, its connector, the lock on its state directory."""

    def __init__(
        self, spec: UfsSpec, directory: Path, deadline_s: float, background_listings: int
    ) -> None:
        self.spec = spec
        self.directory = directory
        self.meter = Meter()
        self.connector: Connector = open_connector(spec, deadline_s=deadline_s, meter=self.meter)
        self.lock_fd = -1
        self.sync_interval_s = 0.0
        self.warning = ""
        self.master: Master
        self._deadline_s = deadline_s
        self._background_listings = background_listings
        self._loader: Loader | None = None

    async def open(self, sync_interval_s: float) -> None:
        """Locks the state directory and opens the namespace. Raises InUse, or the error of a source
        that was never mounted before and cannot be read; nothing stays open then."""
        self.sync_interval_s = sync_interval_s
        try:
            self.lock_fd = await _lock(self.directory / "server.lock")
            self.master = await asyncio.to_thread(
                Master.open,
                self.directory / "namespace",
                self.spec,
                self.connector,
                sync_interval_s,
            )
            self.master.limit_waits(self._deadline_s)
            self.master.background.listings_per_s = self._background_listings
            self.master.on_policies = self._write_pins
            self._write_pins()
            try:
                self.warning = await self.master.check_source()
                self.master.start_probes()
            except BaseException:
                await self.master.close()
                raise
        except BaseException:
            self._release()
            raise

    def _write_pins(self) -> None:
        """Writes or removes the `pinned` file. While it exists, a server over the same cache that
        has not mounted this source evicts nothing of it. Raises NoSpace."""
        path = self.directory / PINNED_NAME
        try:
            if not self.master.has_pins:
                path.unlink(missing_ok=True)
            elif not path.exists():
                _write_durably(path, self.master.namespace.hex())
        except OSError as err:
            raise NoSpace(f"cannot be written: {err.strerror}", path=str(path)) from err

    def start_loading(self, cache: CacheLoading) -> None:
        """Starts requesting load tasks from this source's master. Idempotent."""
        if self._loader is None:
            self._loader = Loader(cache, self.master.work, WORKER)
            self._loader.start()

    def loading(self) -> dict[str, int]:
        """Returns the counters of its loads."""
        return self._loader.status() if self._loader is not None else {}

    async def stop_loading(self) -> None:
        """Stops requesting load tasks. Idempotent."""
        if self._loader is not None:
            await self._loader.close()

    async def close(self) -> None:
        await self.stop_loading()
        await self.master.close()
        self._release()

    def _release(self) -> None:
        self.connector.close()
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def status(self) -> dict[str, Any]:
        return {
            "source": self.spec.url,
            "namespace": self.master.namespace.hex(),
            "sync_interval_s": self.sync_interval_s,
            "origin": msgspec.to_builtins(self.meter.snapshot()),
            **self.master.status(),
        }


class EmbeddedSources:
    """The sources of this server (`cachefs.core.services.SourceServices`)."""

    def __init__(
        self,
        home: StateHome,
        deadline_s: float,
        pointer: Pointer,
        cache_dir: str,
        background_listings: int = 10,
    ) -> None:
        self._home = home
        self._cache_dir = cache_dir
        self._deadline_s = deadline_s
        self._pointer = pointer
        self._background_listings = background_listings
        self._by_key: dict[str, asyncio.Task[Source]] = {}
        self._open: dict[NamespaceId, Source] = {}
        self._cache: CacheLoading | None = None

    def start_loading(self, cache: CacheLoading) -> None:
        """Loads the files of load jobs into `cache`, for present and later sources."""
        self._cache = cache
        for source in self._open.values():
            source.start_loading(cache)

    async def stop_loading(self) -> None:
        """Stops loading on every source. Called before the cache is closed."""
        self._cache = None
        for source in self._open.values():
            await source.stop_loading()

    async def attach(self, body: m.Attach) -> m.Attached:
        """Opens the source if needed. Two concurrent attaches of a source share one attempt."""
        source = await self.open(body.source, body.sync_interval_s)
        found = await source.master.getattr(ROOT_INO)
        assert found.inode is not None
        warning = source.warning
        if body.sync_interval_s != source.sync_interval_s:
            interval = format_duration(source.sync_interval_s)
            warning = f"the running server keeps its sync interval of {interval}"
        if self._cache is not None and source.connector.capabilities.requests:
            self._cache.expect_downloads()
        return m.Attached(source.master.namespace, found.inode, warning)

    async def open(self, spec: UfsSpec, sync_interval_s: float) -> Source:
        task = self._by_key.get(spec.key)
        if task is None:
            task = asyncio.ensure_future(self._open_source(spec, sync_interval_s))
            self._by_key[spec.key] = task
            task.add_done_callback(functools.partial(self._opened, spec.key))
        return await asyncio.shield(task)

    def _opened(self, key: str, task: asyncio.Task[Source]) -> None:
        """Forgets a failed attempt, so that the next attach of the source tries again."""
        if task.cancelled() or task.exception() is not None:
            del self._by_key[key]

    async def _open_source(self, spec: UfsSpec, sync_interval_s: float) -> Source:
        directory = self._home.source_dir(spec)
        limits = self._deadline_s, self._background_listings
        source = await asyncio.to_thread(Source, spec, directory, *limits)
        await source.open(sync_interval_s)
        try:
            write_pointer(directory, self._pointer)
            cache_record.note(directory, spec.url, [self._cache_dir])
        except BaseException:
            await source.close()
            raise
        self._open[source.master.namespace] = source
        if self._cache is not None:
            source.start_loading(self._cache)
        if source.warning:
            log.warning("%s", source.warning)
        return source

    def service(self, namespace: NamespaceId) -> MetadataService:
        """Returns a namespace's master. Raises NotFound, or Unavailable if it is pinned."""
        if namespace not in self._open and self._home.has_pins(namespace):
            raise Unavailable("the source is not mounted", remedy="mount it first")
        return self._attached(namespace).master

    def connector(self, namespace: NamespaceId, ufs: str) -> Connector:
        """Returns the connector of the source, which has one UFS. Raises NotFound."""
        return self._attached(namespace).connector

    def _attached(self, namespace: NamespaceId) -> Source:
        source = self._open.get(namespace)
        if source is None:
            raise NotFound("no such namespace here", remedy="attach its source first")
        return source

    def masters(self) -> list[Master]:
        """Returns the masters in the order in which their sources were mounted."""
        return [source.master for source in self._open.values()]

    def status(self) -> list[dict[str, Any]]:
        return [source.status() for source in self._open.values()]

    def more_status(self, cache: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the part of `status` that only an embedded server has: sums of load jobs, and
        quotas of all sources with the bytes that the cache uses of them."""
        total: Counter[str] = Counter()
        quotas: list[dict[str, Any]] = []
        for source in self._open.values():
            total.update(source.loading())
            quotas += source.master.quotas(cache["quota_used_bytes"])
        return {"loading": dict(total), "quotas": quotas}

    async def close(self) -> None:
        """Closes all sources; cancels attempts to open one."""
        for task in self._by_key.values():
            task.cancel()
        await asyncio.gather(*self._by_key.values(), return_exceptions=True)
        for source in self._open.values():
            forget_pointer(source.directory)
            await source.close()
        self._open.clear()


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


async def _lock(path: Path) -> int:
    """Takes an exclusive flock within `LOCK_WAIT_S` and returns its descriptor. Raises InUse."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for _ in range(int(LOCK_WAIT_S / 0.05)):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                await asyncio.sleep(0.05)
        raise InUse(
            f"{path.parent} is held by another server",
            remedy="unmount what uses it, or end that server (`cachefs status` names its pid)",
        )
    except BaseException:
        os.close(fd)
        raise


async def _start_worker(spec: ServerSpec, sources: EmbeddedSources) -> Cache:
    config = WorkerConfig(
        cache_dir=spec.cache_dir,
        limit_bytes=spec.cache_size_bytes,
        memory_limit_bytes=spec.memory_limit_bytes,
        admission=spec.admission,
        eviction=spec.eviction,
        idle_after_s=spec.idle_after_s,
        origin_deadline_s=spec.origin_deadline_s,
    )
    tier = TierSpec(
        "ssd",
        spec.cache_dir,
        spec.cache_size_bytes,
        high=1.0,
        low=1.0,
        scrub_bytes_per_s=config.scrub_bytes_per_s,
    )
    for _ in range(int(LOCK_WAIT_S / 0.05)):  # a predecessor with another source may be ending
        try:
            return await Cache.start(config, [tier], sources.service, sources.connector)
        except InUse:
            await asyncio.sleep(0.05)
    return await Cache.start(config, [tier], sources.service, sources.connector)


async def run(spec: ServerSpec, ready: ReadyPipe) -> None:
    """Serves until the last mount ends or a signal. Raises the typed error of a failed start."""
    home = StateHome(Path(spec.home))
    directory = home.source_dir(spec.source)
    socket_path = directory / "server.sock"
    pointer = Pointer.of_this_process(str(socket_path))
    sources = EmbeddedSources(
        home, spec.origin_deadline_s, pointer, spec.cache_dir, spec.background_listings
    )
    try:
        source = await sources.open(spec.source, spec.sync_interval_s)
        worker = await _start_worker(spec, sources)
        sources.start_loading(worker.loading)
        try:
            await _serve(spec, ready, worker, sources, socket_path, pointer, source.warning)
        finally:
            await sources.stop_loading()
            await worker.close()
    finally:
        await sources.close()


async def _serve(
    spec: ServerSpec,
    ready: ReadyPipe,
    worker: Cache,
    sources: EmbeddedSources,
    socket_path: Path,
    pointer: Pointer,
    warning: str,
) -> None:
    views = Views(worker.views, sources.service)
    server = NodeServer(
        worker,
        sources,
        files_ahead=spec.files_ahead,
        deadline_s=spec.origin_deadline_s,
        views=views,
    )
    server.more_status = sources.more_status
    server.listen(socket_path)
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        stop = functools.partial(server.request_stop, number.name)
        loop.add_signal_handler(number, stop)
    await worker.at_disk(write_pointer, Path(spec.cache_dir), pointer)
    beside = (gil_affinity.keep_together("load-"), keep_reserve(spec.home))
    tasks = [asyncio.ensure_future(one) for one in beside]
    try:
        async with (
            metrics_site(spec.metrics, server.status),
            admin_site(spec.admin_socket, lambda: Admin(sources.masters, worker, server.status)),
        ):
            log.info("serving %s, cache %s", spec.source.url, spec.cache_dir)
            gc_tuning.settle()
            ready.say(Started(os.getpid(), warning=warning))
            await server.serve()
    finally:
        limit_shutdown()
        for task in tasks:
            task.cancel()
        # No client may find a server that is ending: remove the pointers, then end the sessions.
        await worker.at_disk(forget_pointer, Path(spec.cache_dir))
        forget_pointer(socket_path.parent)
        await server.drain(DRAIN_S)
        await views.close()
        log.info("stopped")


def main() -> int:
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ServerSpec)
    ready = ReadyPipe(spec.launch_fds)
    malloc_tuning.settle()

    def serve() -> None:
        directory = StateHome(Path(spec.home)).source_dir(spec.source) / "log"
        directory.mkdir(mode=0o700, exist_ok=True)
        log_to(str(directory / "server.log"), spec.log_level, to_stderr=spec.log_to_stderr)
        asyncio.run(run(spec, ready))

    return ready.run(serve, log)


if __name__ == "__main__":
    quit_now(main())
