"""The FUSE client: one process per mount point, `python -I -m cachefs.fuse.client`.

Reads a `ClientSpec` on standard input and connects to the node's server. With the transport
`kernel` a supervisor starts the client and mounts; the client reports its progress to the
supervisor. With `pyfuse3` the client mounts and writes `Started` on standard output: success when
the file system answers, otherwise the failure (exit code 1, nothing mounted). Exits with code 0
after an unmount, SIGTERM, SIGINT or SIGHUP, or a Detach from the server.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

import msgspec
import trio

import cachefs
from cachefs.client.connection import RECONNECT_WAIT_S, Connection
from cachefs.client.sockets import connect_socket
from cachefs.core import messages as m
from cachefs.core.addresses import namespace_base
from cachefs.core.errors import CacheFSError, Unsupported
from cachefs.core.specs import HEARTBEATS, ClientSpec, Started
from cachefs.fuse import mounting
from cachefs.fuse.attributes import Defaults
from cachefs.fuse.covers.ability import can_cover
from cachefs.fuse.covers.cover_records import CoverRecords
from cachefs.fuse.covers.covered_mount import CoveredMount
from cachefs.fuse.covers.covers import Covers
from cachefs.fuse.hang_watch import ServerWatch
from cachefs.fuse.mount_record_writer import MountRecordWriter
from cachefs.fuse.runs import CoroutineRunner
from cachefs.fuse.supervisor import wire
from cachefs.fuse.supervisor.link import SupervisorLink
from cachefs.fuse.vfs import Vfs
from cachefs.launcher.cluster import ensure_node
from cachefs.launcher.logs import log_to
from cachefs.launcher.processes import STOP_SIGNALS, Server, ensure_server
from cachefs.launcher.ready import ReadyPipe
from cachefs.launcher.state import MountRecord, StateHome

log = logging.getLogger("cachefs.client")

DRAIN_S: Final = 2.0  # for requests in flight after a clean unmount
SERVER_WAIT_S: Final = 60.0  # a successor waits for a server that is restarting
_PAUSE_S: Final = 0.1
COLLECT_AFTER: Final = 20_000  # new objects that may be part of a cycle


class Client:
    """The parts of a client that both transports need. Setting `stopping` ends the mount; `link` is
    the connection to the supervisor (None for pyfuse3)."""

    def __init__(self, spec: ClientSpec, ready: ReadyPipe, link: SupervisorLink | None) -> None:
        self.spec = spec
        self.ready = ready
        self.link = link
        self.home = StateHome(spec.home)
        self.record = MountRecordWriter(self.home, self._record, self._is_replaced)
        self.stopping = trio.Event()
        self.on_leave: Callable[[], None] = lambda: None  # leaves a deposited mount to a successor
        # Tells a new server of the mount; a session of the transport `kernel` does so by itself.
        self.tell_facts: Callable[[], None] = lambda: None
        self.runs = _runs(spec)
        self.covers: Covers | None = None  # for a mount that may have some
        if can_cover(spec):
            self.covers = self._new_covers()
        self._early: list[m.TierState] = []  # received before the Vfs existed
        self._conn: Connection

    async def run(self) -> None:
        """Serves until the mount ends. Raises the typed error of a failed start."""
        async with trio.open_nursery() as nursery:
            if self.link is not None:
                self.link.on_supervisor = self.record.keep
                nursery.start_soon(self.link.guard)
            self._conn = conn = await self._connect()
            conn.on_event = self._early_event
            if self.covers is not None:
                conn.on_cover = self.covers.cover
                conn.on_greeted = functools.partial(self.covers.greeted, conn)
                self.covers.greeted(conn)
            nursery.start_soon(conn.run)
            if self.covers is not None:
                nursery.start_soon(self.covers.run)
            await self._serve(conn)
            nursery.cancel_scope.cancel()

    async def _connect(self) -> Connection:
        """Returns a connection. A successor waits for a server that is restarting."""
        spec = self.spec
        hello = m.Hello(
            role="fuse",
            pid=os.getpid(),
            version=cachefs.__version__,
            mountpoint=spec.mountpoint,
            supervisor=self.link.supervisor if self.link is not None else 0,
            many_tiers=True,
            covers=self.covers is not None,
            defaults=list(msgspec.structs.astuple(_defaults(spec))),
        )
        wait_s = spec.worker_wait_s or (SERVER_WAIT_S if spec.successor else 0.0)
        deadline = trio.current_time() + wait_s
        while True:
            try:
                return await Connection.connect(
                    spec.socket,
                    hello,
                    reconnect=self._reconnect,
                    waits=self.runs,
                    reconnect_wait_s=spec.worker_wait_s or RECONNECT_WAIT_S,
                )
            except CacheFSError:
                if trio.current_time() >= deadline:
                    raise
            with contextlib.suppress(CacheFSError):
                (await self._reconnect()).close()
            await trio.sleep(_PAUSE_S)

    async def _serve(self, conn: Connection) -> None:
        spec = self.spec
        attach = m.Attach(spec.source, spec.sync_interval_s, spec.read_only)
        attached = await conn.attach(attach)
        vfs = Vfs(conn, attached, _defaults(spec), waits=self.runs, attach=attach)
        conn.on_reconnected = lambda attached: self._on_reconnected(vfs, attached)
        conn.on_event = lambda event: self._event(vfs, event)
        for event in self._early:
            vfs.on_event(event)
        try:
            if self.link is not None:
                from cachefs.fuse import kernel_mount

                await kernel_mount.serve(self, conn, vfs, attached.warning)
            else:
                from cachefs.fuse import pyfuse3_mount

                await pyfuse3_mount.serve(self, conn, vfs, attached.warning)
        finally:
            vfs.close()

    async def start_tasks(self, nursery: trio.Nursery, vfs: Vfs, device: str) -> None:
        """Starts the background tasks of a session in `nursery`, which ends with the session.
        When this returns, signals are handled."""
        await nursery.start(self._end_on_signals)
        watch = ServerWatch(self._conn, lambda: self.spec.socket, server_limit_s(self.spec))
        nursery.start_soon(watch.run)
        nursery.start_soon(vfs.report_uses)
        nursery.start_soon(vfs.give_back)
        nursery.start_soon(vfs.read_names_ahead)
        nursery.start_soon(vfs.follow_root)
        nursery.start_soon(self._unmount_when_stopping, device, nursery.cancel_scope)

    def _on_reconnected(self, vfs: Vfs, attached: m.Attached) -> None:
        vfs.on_reconnected(attached)
        self.tell_facts()
        if self.covers is not None:
            self.covers.distrusted()

    def _new_covers(self) -> Covers:
        """Returns the covers of this mount: those of a predecessor, none of a new mount."""
        where = self.spec.mountpoint
        records = CoverRecords(self.home.covers_file(where))
        if not self.spec.successor:
            records.clear()
        device = mounting.device_of(self.spec) if self.spec.successor else ""
        mount = CoveredMount(where, device, records)
        return Covers(mount, namespace_base(self.spec.source.url), self.stopping.set)

    def _record(self) -> MountRecord:
        """Returns the mount's record, with the pids of this client and its supervisor."""
        supervisor = self.link.supervisor if self.link is not None else 0
        return MountRecord.of(self.spec, os.getpid(), supervisor)

    def _is_replaced(self) -> bool:
        return mounting.is_replaced(self.spec)

    # ---- shutdown ----

    async def _end_on_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                log.info("stopping: %s", signal.Signals(number).name)
                self.stopping.set()

    async def _unmount_when_stopping(self, device: str, scope: trio.CancelScope) -> None:
        """Unmounts once `stopping` is set. After a clean unmount the session has `DRAIN_S` to end;
        after a lazy one it ends at once, which cuts off processes with open files. A deposited
        mount stays."""
        await self.stopping.wait()
        if self.spec.deposit is not None:
            return self.on_leave()
        if self.covers is not None:
            await self.covers.end()
        if await trio.to_thread.run_sync(mounting.unmount, self.spec.mountpoint, device):
            await trio.sleep(DRAIN_S)
        self.leave()
        scope.cancel()

    def leave(self) -> None:
        """Notifies the server and the supervisor that no successor follows; removes the record."""
        if self.covers is not None:
            self.covers.gone()
        self._conn.post(m.Leaving())
        self.record.remove(is_repeated=self.link is not None)
        if self.link is not None:
            self.link.say(wire.Ending())

    def _early_event(self, event: m.Message) -> None:
        if isinstance(event, m.Detach):
            self.stopping.set()
        elif isinstance(event, m.TierState):
            self._early.append(event)
        elif isinstance(event, m.Uncover) and self.covers is not None:
            self.covers.uncover(event)

    def _event(self, vfs: Vfs, event: m.Message) -> None:
        if isinstance(event, m.Detach):
            log.info("stopping: the server detached this mount: %s", event.reason or "no reason")
            self.stopping.set()
        elif isinstance(event, m.Uncover):
            if self.covers is not None:
                self.covers.uncover(event)
        else:
            vfs.on_event(event)

    # ---- reconnecting ----

    async def _reconnect(self) -> socket.socket:
        """Opens another connection. Restarts an embedded server that died; switches to another
        worker of this machine when a cluster's worker does not return."""
        spec = self.spec
        if self.stopping.is_set() or (spec.server is None and spec.node is None):
            return connect_socket(spec.socket)
        server = await trio.to_thread.run_sync(_find_server, spec, abandon_on_cancel=True)
        sock = connect_socket(server.socket)
        self._switch_to(server.socket)
        return sock

    def _switch_to(self, socket_path: str) -> None:
        """Updates the spec and the mount's record after a switch to another server."""
        if socket_path == self.spec.socket:
            return
        log.info("this mount uses the worker at %s now", socket_path)
        self.spec = msgspec.structs.replace(self.spec, socket=socket_path)
        self.record.update()


def server_limit_s(spec: ClientSpec) -> float:
    """Returns after how long without a sign of life a server counts as hung."""
    return HEARTBEATS * spec.heartbeat_timeout_s


def _find_server(spec: ClientSpec) -> Server:
    limit_s = server_limit_s(spec)
    if spec.node is not None:
        return ensure_node(spec.node, spec.socket, hang_limit_s=limit_s)
    assert spec.server is not None
    # `cachefs mount` has checked the directory. A stricter check in a newer version ends no mount.
    server = msgspec.structs.replace(spec.server, trust_directories=True)
    return ensure_server(server, hang_limit_s=limit_s)


def _runs(spec: ClientSpec) -> CoroutineRunner:
    if spec.transport == "kernel":
        return CoroutineRunner()
    from cachefs.fuse.workers import Workers

    return Workers()


def _defaults(spec: ClientSpec) -> Defaults:
    return Defaults(
        uid=spec.uid if spec.uid >= 0 else os.geteuid(),
        gid=spec.gid if spec.gid >= 0 else os.getegid(),
        file_mode=spec.file_mode,
        dir_mode=spec.dir_mode,
    )


def raise_descriptor_limit() -> None:
    """Raises the soft limit to the hard one: each open file of the mount is a descriptor here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def write_stacks_on_signal(spec: ClientSpec) -> None:
    """Writes all stacks to the client's log on SIGUSR2, which the supervisor sends if it hangs."""
    if spec.log_to_stderr or not spec.log_file:
        return faulthandler.register(signal.SIGUSR2, all_threads=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    faulthandler.register(signal.SIGUSR2, os.open(spec.log_file, flags, 0o600), all_threads=True)


def collect_garbage_less() -> None:
    """Makes the collector of cycles run less often: the metadata cache is many small tuples without
    cycles, and a listing of a directory makes thousands."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


def _only_error(group: BaseException) -> BaseException:
    """Returns the first error of nested exception groups: it cancelled the other tasks."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def main() -> int:
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ClientSpec)
    ready = ReadyPipe()
    log_to(spec.log_file, spec.log_level, to_stderr=spec.log_to_stderr, as_json=spec.log_json)
    write_stacks_on_signal(spec)
    raise_descriptor_limit()
    collect_garbage_less()
    link = SupervisorLink(spec) if spec.control_fd >= 0 else None
    try:
        if spec.transport not in ("kernel", "pyfuse3"):
            raise Unsupported(f"unknown transport {spec.transport!r}", remedy="use auto")
        trio.run(Client(spec, ready, link).run, restrict_keyboard_interrupt_to_checkpoints=True)
    except* CacheFSError as group:
        error = _only_error(group)
        assert isinstance(error, CacheFSError)
        log.error("%s", error.one_line())
        ready.say(Started(os.getpid(), failure=m.failure_of(error)))
        if link is not None:
            link.say(wire.Failed(m.failure_of(error)))
        return_code = 1
    else:
        return_code = 0
    return return_code


if __name__ == "__main__":
    sys.exit(main())
