"""A client of the transport `kernel` without a supervisor.

`python -m tests.services.kernel_client` takes a `ClientSpec` and says `Started` as
`cachefs.fuse.client` does; mounts as root, by mount(2).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec
import trio

from cachefs.client.connection import Connection
from cachefs.client.sockets import connect_socket
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, CannotMount
from cachefs.core.specs import ClientSpec, Started
from cachefs.fuse import mounting
from cachefs.fuse.attributes import Defaults
from cachefs.fuse.kernel.negotiation import Negotiated, negotiate
from cachefs.fuse.kernel.session import KernelSession
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.runs import Runs
from cachefs.fuse.vfs import Vfs
from cachefs.launcher.logs import log_to
from cachefs.launcher.ready import ReadyPipe
from cachefs.launcher.state import MountRecord, StateHome

INIT_S: Final = 10.0
_FLAGS: Final = 1 | 2 | 4  # read-only, nosuid, nodev


def mount(spec: ClientSpec) -> tuple[int, Negotiated]:
    """The descriptor of /dev/fuse, INIT answered."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
    options += ",allow_other" * spec.allow_other + ",default_permissions" * spec.default_permissions
    flags = _FLAGS if spec.read_only else _FLAGS & ~1
    source, where = spec.source.url.encode(), os.fsencode(spec.mountpoint)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source, where, b"fuse.cachefs", flags, options.encode()):
        raise CannotMount(os.strerror(ctypes.get_errno()), path=spec.mountpoint)
    select.select([fd], [], [], INIT_S)
    why_not = "" if spec.passthrough == "auto" else "switched off"
    limit = int(Path("/proc/sys/fs/fuse/max_pages_limit").read_text())
    negotiated, reply = negotiate(os.read(fd, 1 << 20), may_passthrough=why_not, pages_limit=limit)
    os.write(fd, reply)
    return fd, negotiated


async def serve(spec: ClientSpec, ready: ReadyPipe) -> None:
    """Until the mount is gone."""
    runs = Runs()
    hello = m.Hello(role="fuse", pid=os.getpid(), mountpoint=spec.mountpoint)

    async def reconnect() -> object:
        return connect_socket(spec.socket)

    conn = await Connection.connect(spec.socket, hello, reconnect=reconnect, waits=runs)  # type: ignore[arg-type]
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(conn.run)
        attached = await conn.attach(m.Attach(spec.source, spec.sync_interval_s, True))
        vfs = Vfs(conn, attached, Defaults(0, 0, spec.file_mode, spec.dir_mode), waits=runs)
        conn.on_reconnected = vfs.on_reconnected
        conn.on_event = lambda event: (
            stopping.set() if isinstance(event, m.Detach) else vfs.on_event(event)
        )
        fd, negotiated = mount(spec)
        device = mounting.device_at(spec.mountpoint)
        mounting.raise_read_ahead(device)
        mounting.raise_background(device)
        session = KernelSession(vfs, runs, fd, TakeoverTable.create(), negotiated)
        nursery.start_soon(vfs.report_uses)
        nursery.start_soon(vfs.read_names_ahead)
        await nursery.start(stop_on_signals, stopping)
        nursery.start_soon(unmount_when_told, spec, device, stopping, nursery.cancel_scope)
        StateHome(spec.home).write_mount(MountRecord.of(spec, os.getpid()))
        ready.say(Started(os.getpid(), warning=attached.warning))
        await session.serve(resend=False)
        StateHome(spec.home).remove_mount(spec.mountpoint, os.getpid())
        nursery.cancel_scope.cancel()


async def stop_on_signals(
    stopping: trio.Event, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            stopping.set()


async def unmount_when_told(
    spec: ClientSpec, device: str, stopping: trio.Event, scope: trio.CancelScope
) -> None:
    await stopping.wait()
    if await trio.to_thread.run_sync(mounting.unmount, spec.mountpoint, device):
        await trio.sleep(2.0)
    StateHome(spec.home).remove_mount(spec.mountpoint, os.getpid())
    scope.cancel()


def main() -> int:
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ClientSpec)
    ready = ReadyPipe()
    log_to(spec.log_file, spec.log_level, to_stderr=False)
    try:
        trio.run(serve, spec, ready, restrict_keyboard_interrupt_to_checkpoints=True)
    except* CacheFSError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, CacheFSError)
        ready.say(Started(os.getpid(), failure=m.failure_of(error)))
        status = 1
    else:
        status = 0
    return status


if __name__ == "__main__":
    sys.exit(main())
