"""The FUSE client: one process per mount point, `python -I -m cachefs.fuse.client`.

Reads a `ClientSpec` on standard input, connects to the node's server, mounts, and says `Started` on
standard output when the file system answers, or why it never will (exit code 1, nothing mounted).
Ends with exit code 0 when the mount is gone, on SIGTERM, SIGINT, SIGHUP, and when the server says
Detach.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import trio

import cachefs
from cachefs.client.connection import Connection
from cachefs.client.sockets import connect_socket
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, CannotMount, Unsupported
from cachefs.core.specs import ClientSpec, Started
from cachefs.fuse import mounting
from cachefs.fuse.attributes import Defaults
from cachefs.fuse.vfs import Vfs
from cachefs.fuse.workers import Workers
from cachefs.launcher.logs import log_to
from cachefs.launcher.ready import ReadyPipe
from cachefs.launcher.state import MountRecord, StateHome

log = logging.getLogger("cachefs.client")

INIT_DEADLINE_S: Final = 10.0
DRAIN_S: Final = 2.0  # for requests under way when the mount is taken away
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Client:
    """The life of one mount. `stopping` is set by whatever ends it."""

    def __init__(self, spec: ClientSpec, ready: ReadyPipe) -> None:
        self._spec = spec
        self._ready = ready
        self._stopping = trio.Event()
        self._workers = Workers()
        self._home = StateHome(spec.home)

    async def run(self) -> None:
        """Until the mount is gone. Raises the typed error of a start that failed; nothing stays
        mounted."""
        hello = m.Hello(
            role="fuse",
            pid=os.getpid(),
            version=cachefs.__version__,
            mountpoint=self._spec.mountpoint,
        )
        conn = await Connection.connect(
            self._spec.socket, hello, reconnect=self._reconnect, waits=self._workers
        )
        conn.on_event = self._early_event
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conn.run)
            await self._mount(conn)
            nursery.cancel_scope.cancel()

    async def _mount(self, conn: Connection) -> None:
        spec = self._spec
        attach = m.Attach(spec.source, spec.sync_interval_s, spec.read_only)
        attached = await conn.attach(attach)
        vfs = Vfs(conn, attached, _defaults(spec), waits=self._workers)
        conn.on_reconnected = vfs.on_reconnected
        conn.on_event = lambda event: self._event(vfs, event)
        try:
            await self._serve(vfs, attached.warning)
        finally:
            vfs.close()

    async def _serve(self, vfs: Vfs, warning: str) -> None:
        """Mounts, says so, serves, unmounts."""
        from cachefs.fuse.pyfuse3_transport import Session  # needs libfuse

        spec = self._spec
        with _libfuse_says() as said:
            try:
                options = mounting.mount_options(spec)
                session = Session(vfs, self._workers, spec.mountpoint, options)
            except RuntimeError as err:
                raise cannot_mount(spec.mountpoint, said()) from err
        device = mounting.device_at(spec.mountpoint)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_on_signals)
                nursery.start_soon(vfs.report_uses)
                nursery.start_soon(vfs.read_names_ahead)
                nursery.start_soon(self._unmount_when_told, device, nursery.cancel_scope)
                nursery.start_soon(self._announce, session.operations.ready, device, warning)
                await session.serve()
                log.info("the mount is gone")
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(mounting.unmount, spec.mountpoint, device)
            session.close()
            self._home.remove_mount(spec.mountpoint, os.getpid())

    async def _announce(self, answering: trio.Event, device: str, warning: str) -> None:
        with trio.move_on_after(INIT_DEADLINE_S):
            await answering.wait()
        if not answering.is_set():
            raise CannotMount("the kernel did not start the session", path=self._spec.mountpoint)
        mounting.raise_read_ahead(device)
        mounting.raise_background(device)
        self._home.write_mount(MountRecord.of(self._spec, os.getpid()))
        log.info("%s is ready at %s", self._spec.source.url, self._spec.mountpoint)
        self._ready.say(Started(os.getpid(), warning=warning))

    # ---- what ends it ----

    async def _end_on_signals(self) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            async for number in signals:
                log.info("stopping: %s", signal.Signals(number).name)
                self._stopping.set()

    async def _unmount_when_told(self, device: str, scope: trio.CancelScope) -> None:
        """The session ends by itself when the mount is gone; who keeps files open is cut off."""
        await self._stopping.wait()
        if await trio.to_thread.run_sync(mounting.unmount, self._spec.mountpoint, device):
            await trio.sleep(DRAIN_S)
        scope.cancel()

    def _early_event(self, event: m.Message) -> None:
        if isinstance(event, m.Detach):
            self._stopping.set()

    def _event(self, vfs: Vfs, event: m.Message) -> None:
        if isinstance(event, m.Detach):
            log.info("stopping: the server says %s", event.reason or "so")
            self._stopping.set()
        else:
            vfs.on_event(event)

    # ---- the next server ----

    async def _reconnect(self) -> socket.socket:
        """Another connection; an embedded server that died is started again."""
        if self._stopping.is_set() or self._spec.server is None:
            return connect_socket(self._spec.socket)
        from cachefs.launcher.processes import ensure_server

        server = await trio.to_thread.run_sync(
            ensure_server, self._spec.server, abandon_on_cancel=True
        )
        return connect_socket(server.socket)


def _defaults(spec: ClientSpec) -> Defaults:
    return Defaults(
        uid=spec.uid if spec.uid >= 0 else os.geteuid(),
        gid=spec.gid if spec.gid >= 0 else os.getegid(),
        file_mode=spec.file_mode,
        dir_mode=spec.dir_mode,
    )


@contextlib.contextmanager
def _libfuse_says() -> Iterator[Callable[[], str]]:
    """Catches what libfuse writes to standard error; gives it to the caller, and to the log."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:

        def said() -> str:
            caught.seek(0)
            return caught.read().decode(errors="replace").strip()

        os.dup2(caught.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            if text := said():
                log.info("libfuse: %s", text)


def cannot_mount(mountpoint: str, said: str) -> CannotMount:
    """Why libfuse could not mount, with what to do."""
    if not os.path.exists("/dev/fuse"):
        return CannotMount(
            "there is no /dev/fuse", remedy="load the kernel module: modprobe fuse", path=mountpoint
        )
    line = said.splitlines()[-1] if said else "libfuse gives no reason"
    remedy = "see the client's log"
    if "allow_other" in said:
        remedy = "add user_allow_other to /etc/fuse.conf, or mount without --allow-other"
    elif "fusermount" in said and "not found" in said:
        remedy = "install the package fuse3"
    return CannotMount(line.removeprefix("fuse: "), remedy=remedy, path=mountpoint)


def raise_descriptor_limit() -> None:
    """Every open file of the mount is a descriptor here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _only_error(group: BaseException) -> BaseException:
    """The first failure of a nursery that ended others with it."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def main() -> int:
    """Entry point of the process."""
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ClientSpec)
    ready = ReadyPipe()
    log_to(spec.log_file, spec.log_level, to_stderr=spec.log_to_stderr)
    raise_descriptor_limit()
    try:
        if spec.transport not in ("auto", "pyfuse3"):
            raise Unsupported(f"unknown transport {spec.transport!r}", remedy="use pyfuse3")
        trio.run(Client(spec, ready).run, restrict_keyboard_interrupt_to_checkpoints=True)
    except* CacheFSError as group:
        error = _only_error(group)
        assert isinstance(error, CacheFSError)
        log.error("%s", error.one_line())
        ready.say(Started(os.getpid(), failure=m.failure_of(error)))
        return_code = 1
    else:
        return_code = 0
    return return_code


if __name__ == "__main__":
    sys.exit(main())
