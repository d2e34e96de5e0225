"""A client's side of the control socket: sends heartbeats, receives orders, and starts another
supervisor when the present one is lost.

The client also holds /dev/fuse and the takeover table, so the mount does not depend on a supervisor
while a client lives. A successor has both from its start, before the order to serve: if the
supervisor is lost before that, the successor starts another (`guard`). Belongs to one trio loop.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from cachefs.core.errors import ProtocolError, Unreachable
from cachefs.core.specs import ClientSpec, OrphanedMount, SupervisorSpec
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.kernel.reader_lock import ReaderLock
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.supervisor import wire as w
from cachefs.launcher.processes import start_supervisor
from cachefs.network.unix_sockets import close_all

log = logging.getLogger(__name__)

PAUSE_FIRST_S: Final = 0.1  # after a supervisor that ended soon after its start
PAUSE_MAX_S: Final = 5.0
GOOD_S: Final = 2.0  # a supervisor that lived this long is replaced without a pause
LOCK_POLL_S: Final = 0.002  # between attempts to become the reader; a take-over waits for this
LOCK_WAIT_S: Final = 60.0


class SupervisorLink:
    """The connection to the supervisor. `take` sets `table` and `negotiated`, and takes `lock`."""

    def __init__(self, spec: ClientSpec) -> None:
        self.supervisor = os.getppid()
        self.fuse_fd, self._table_fd, self._values = -1, -1, b""
        if spec.held is not None:
            self._hold(spec.held.fuse_fd, spec.held.table_fd, spec.held.negotiated)
        self.table: TakeoverTable
        self.lock: ReaderLock
        self.negotiated: Negotiated
        self.takeover = False
        self.on_retire: Callable[[], None] = lambda: None
        self.on_supervisor: Callable[[], None] = lambda: None  # after a change of supervisor
        self._has_left = False  # the supervisor announced its end
        self._ready: w.Ready | None = None  # once it was sent
        self._guard = trio.CancelScope()
        self._unguarded = trio.Event()
        self._unguarded.set()
        self._started_s = -math.inf  # when this client started the present supervisor
        self._pause_s = PAUSE_FIRST_S
        self._spec = spec
        self._sock = socket.socket(fileno=spec.control_fd)
        self._sock.setblocking(False)
        os.set_inheritable(spec.control_fd, False)

    def say(self, note: w.ControlMessage) -> None:
        """Sends a message without blocking. Drops it if the supervisor is lost or does not read."""
        if isinstance(note, w.Ready):
            self._ready = note
        try:
            w.send(self._sock, note)
        except OSError as err:
            log.debug("cannot send %s to the supervisor: %s", type(note).__name__, err)

    async def take(self) -> None:
        """Waits for the order to serve, and then until no other client reads the device. If the
        supervisor ends before the order, a successor that has the descriptors starts another one;
        any other client raises Unreachable. Raises Unsupported for a takeover table of another
        version, Unreachable if a client keeps reading for `LOCK_WAIT_S`."""
        self._guard.cancel()
        await self._unguarded.wait()
        while True:
            note, fds = await self._receive()
            if isinstance(note, w.Serve) and len(fds) == w.MAX_FDS:
                break
            close_all(fds)
            if note is not None or self.fuse_fd < 0:
                raise Unreachable("the supervisor ended before this client could serve the mount")
            await self._replace(logging.WARNING, is_serving=False)
        for fd in (self.fuse_fd, self._table_fd):
            if fd >= 0:
                os.close(fd)
        self._hold(fds[0], fds[1], w.encode_negotiated(note.negotiated))
        self.lock = ReaderLock(self._table_fd)
        await self._become_reader()
        self.table, self.negotiated = TakeoverTable(self._table_fd), note.negotiated
        self.takeover = note.takeover

    async def _become_reader(self) -> None:
        with trio.move_on_after(LOCK_WAIT_S):
            while not self.lock.try_take():
                await trio.sleep(LOCK_POLL_S)
            return
        raise Unreachable("another client keeps reading /dev/fuse")

    async def guard(self) -> None:
        """Starts another supervisor when this one is lost, until `take` is called. Returns at once
        if this client receives its descriptors only with the order to serve."""
        self._unguarded = trio.Event()
        try:
            with self._guard:
                while self.fuse_fd >= 0 and not self._guard.cancel_called:
                    await trio.lowlevel.wait_readable(self._sock)
                    if not self._is_closed():
                        break
                    await self._replace(logging.WARNING, is_serving=False)
        finally:
            self._unguarded.set()

    def _is_closed(self) -> bool:
        """Returns whether the peer has closed the socket and no message is left to read."""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError as err:  # reported once, before the supervisor's last messages
            log.debug("control socket: %s", err)
            return False

    async def _replace(self, level: int, *, is_serving: bool) -> None:
        """Starts another supervisor, then pauses if the lost one lived for less than `GOOD_S`."""
        log.log(level, "lost the supervisor %d; starting another", self.supervisor)
        now_s = trio.current_time()
        lived_s, self._started_s = now_s - self._started_s, now_s
        await self._start_another(is_serving=is_serving)
        if not is_serving and self._ready is not None:
            self.say(self._ready)
        if lived_s >= GOOD_S:
            self._pause_s = PAUSE_FIRST_S
            return
        await trio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    async def run(self) -> None:
        """Sends heartbeats and handles messages, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            await self._listen()

    async def _beat(self) -> None:
        while True:
            self.say(w.Beat())
            await trio.sleep(w.BEAT_S)

    async def _listen(self) -> None:
        while True:
            await self._receive_until_lost()
            level = logging.INFO if self._has_left else logging.WARNING
            await self._replace(level, is_serving=True)

    async def _receive_until_lost(self) -> None:
        """Handles messages until the supervisor is lost."""
        self._has_left = False
        while True:
            try:
                note, fds = await self._receive()
            except ProtocolError as err:  # a supervisor of another version may send other messages
                log.info("the supervisor: %s", err)
                continue
            except OSError as err:
                log.debug("control socket: %s", err)
                return
            close_all(fds)
            if note is None:
                return
            if isinstance(note, w.Retire):
                self.on_retire()
            elif isinstance(note, w.Leaving):
                self._has_left = True

    async def _receive(self) -> tuple[w.AnyControlMessage | None, list[int]]:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return w.receive(self._sock)
            except BlockingIOError:
                continue

    async def _start_another(self, *, is_serving: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        fds = (theirs.fileno(), self.fuse_fd, self._table_fd)
        adopted = OrphanedMount(os.getpid(), *fds, self._values, is_serving)
        client = msgspec.structs.replace(self._spec, control_fd=-1, held=None)
        spec = SupervisorSpec(client, adopted)
        with theirs:
            try:
                self.supervisor = await trio.to_thread.run_sync(start_supervisor, spec, fds)
            except OSError as err:
                log.error("cannot start a supervisor: %s", err)
        self._sock.close()
        self._sock = ours
        self.on_supervisor()

    def note_device(self, device: str) -> None:
        """Notes the device of the mount for supervisors that this client starts."""
        self._spec = msgspec.structs.replace(self._spec, device=device)

    def _hold(self, fuse_fd: int, table_fd: int, negotiated: bytes) -> None:
        self.fuse_fd, self._table_fd, self._values = fuse_fd, table_fd, negotiated
        for fd in (fuse_fd, table_fd):
            os.set_inheritable(fd, False)

    def close(self) -> None:
        """Closes the socket; the other descriptors close with the process. Idempotent."""
        self._sock.close()
