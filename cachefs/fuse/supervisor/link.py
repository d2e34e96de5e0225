"""A client's side of the control socket: says that it lives, is told what to do, and starts another
supervisor when its own is lost.

The client holds /dev/fuse and the takeover table too, so the mount does not depend on a supervisor
while there is a client. Belongs to one trio loop.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from cachefs.core.errors import ProtocolError, Unreachable
from cachefs.core.specs import Adopted, ClientSpec, SupervisorSpec
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.supervisor import wire as w
from cachefs.launcher.processes import start_supervisor

log = logging.getLogger(__name__)

PAUSE_FIRST_S: Final = 0.1  # between lost supervisors
PAUSE_MAX_S: Final = 30.0


class Link:
    """See the module. `fuse_fd`, `table` and `negotiated` are there once `take` has returned."""

    def __init__(self, spec: ClientSpec) -> None:
        self.supervisor = os.getppid()
        self.fuse_fd = -1
        self.table: TakeoverTable
        self.negotiated: Negotiated
        self.takeover = False
        self.on_retire: Callable[[], None] = lambda: None
        self.on_supervisor: Callable[[], None] = lambda: None  # another one
        self._has_left = False  # the supervisor, of its own will
        self._spec = spec
        self._sock = socket.socket(fileno=spec.control_fd)
        self._sock.setblocking(False)
        os.set_inheritable(spec.control_fd, False)

    def say(self, note: w.Note) -> None:
        """Tells the supervisor; one that is lost or does not read is not waited for."""
        try:
            w.send(self._sock, note)
        except OSError as err:
            log.debug("the supervisor is not told %s: %s", type(note).__name__, err)

    async def take(self) -> None:
        """Waits to be told to serve. Raises Unreachable when the supervisor ends before that, or
        Unsupported for a takeover table of another version."""
        note, fds = await self._receive()
        if not isinstance(note, w.Serve) or len(fds) != w.MAX_FDS:
            for fd in fds:
                os.close(fd)
            raise Unreachable("the supervisor ended before the mount was there")
        self.fuse_fd, self.takeover = fds[0], note.takeover
        self.table = TakeoverTable(fds[1])
        self.negotiated = note.negotiated

    async def run(self) -> None:
        """Beats and listens, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            await self._listen()

    async def _beat(self) -> None:
        while True:
            self.say(w.Beat())
            await trio.sleep(w.BEAT_S)

    async def _listen(self) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            started = trio.current_time()
            await self._obey()
            if trio.current_time() - started > PAUSE_MAX_S:
                pause_s = PAUSE_FIRST_S
            level = logging.INFO if self._has_left else logging.WARNING
            log.log(level, "the supervisor %d is lost; starting another", self.supervisor)
            await self._start_another()
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _obey(self) -> None:
        """Until the supervisor is lost."""
        self._has_left = False
        while True:
            try:
                note, fds = await self._receive()
            except ProtocolError as err:  # of another version: it may say what we do not know
                log.info("the supervisor: %s", err)
                continue
            except OSError as err:
                log.debug("control socket: %s", err)
                return
            for fd in fds:
                os.close(fd)
            if note is None:
                return
            if isinstance(note, w.Retire):
                self.on_retire()
            elif isinstance(note, w.Leaving):
                self._has_left = True

    async def _receive(self) -> tuple[w.AnyNote | None, list[int]]:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return w.receive(self._sock)
            except BlockingIOError:
                continue

    async def _start_another(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        fds = (theirs.fileno(), self.fuse_fd, self.table.fd)
        negotiated = w.encode_negotiated(self.negotiated)
        adopted = Adopted(os.getpid(), *fds, negotiated)
        spec = SupervisorSpec(msgspec.structs.replace(self._spec, control_fd=-1), adopted)
        with theirs:
            try:
                self.supervisor = await trio.to_thread.run_sync(start_supervisor, spec, fds)
            except OSError as err:
                log.error("no supervisor could be started: %s", err)
        self._sock.close()
        self._sock = ours
        self.on_supervisor()

    def close(self) -> None:
        """Idempotent. The descriptors go with the process."""
        self._sock.close()
