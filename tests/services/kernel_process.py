"""A process that serves a mount it was handed: `python -m tests.services.kernel_process`.

Takes a `Handed` on standard input; the descriptors that it names are inherited. On the control
socket it says "ready", answers "facts" with JSON, and retires, distrusts all names, or takes a
change of one, when told so.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys

import msgspec
import trio

from cachefs.client.connection import Connection
from cachefs.core import messages as m
from cachefs.core.model import UfsSpec
from cachefs.fuse.attributes import Defaults
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.kernel.session import KernelSession
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.runs import CoroutineRunner
from cachefs.fuse.vfs import Vfs


class Handed(msgspec.Struct, frozen=True):
    """What a process needs to serve. `resend`: it comes after another."""

    server: str  # the socket of the node's server
    source: UfsSpec
    sync_interval_s: float
    negotiated: Negotiated
    device_fd: int
    table_fd: int
    control_fd: int
    resend: bool


async def serve(handed: Handed) -> None:
    """Until the mount is gone, or it is told to retire."""
    runs = CoroutineRunner()
    hello = m.Hello(role="fuse", pid=os.getpid())
    conn = await Connection.connect(handed.server, hello, waits=runs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(conn.run)
        attached = await conn.attach(m.Attach(handed.source, handed.sync_interval_s))
        vfs = Vfs(conn, attached, Defaults(0, 0), waits=runs)
        conn.on_event, conn.on_reconnected = vfs.on_event, vfs.on_reconnected
        table = TakeoverTable(handed.table_fd)
        session = KernelSession(vfs, runs, handed.device_fd, table, handed.negotiated)
        nursery.start_soon(vfs.report_uses)
        nursery.start_soon(vfs.give_back)
        nursery.start_soon(vfs.read_names_ahead)
        nursery.start_soon(obey, socket.socket(fileno=handed.control_fd), vfs, session)
        await session.serve(handed.resend)
        nursery.cancel_scope.cancel()


async def obey(control: socket.socket, vfs: Vfs, session: KernelSession) -> None:
    """Answers commands, one datagram each. Retires when nobody is there to give them."""
    control.send(b"ready")
    while True:
        await trio.lowlevel.wait_readable(control)
        command = control.recv(64)
        if command == b"facts":
            descriptors = len(os.listdir("/proc/self/fd"))
            facts = {**session.facts(), "descriptors": descriptors, "why_not": session.why_not}
            control.send(json.dumps(facts).encode())
        elif command == b"invalidate":
            vfs.invalidate_everything()
            control.send(b"done")
        elif command.startswith(b"changed "):
            _, parent, name = command.split(b" ", 2)
            vfs.on_event(m.Invalidate(vfs.namespace, 1, [(int(parent), name)]))
            control.send(b"done")
        else:
            return session.retire()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    handed = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Handed)
    trio.run(serve, handed, restrict_keyboard_interrupt_to_checkpoints=True)


if __name__ == "__main__":
    main()
