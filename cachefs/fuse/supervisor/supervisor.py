"""The supervisor's shell: a poll loop around `state.Supervision`.

Owns /dev/fuse, the negotiated values of INIT, the takeover table and the control sockets of its
clients. It serves no request of the kernel, so no request can crash it. It mounts, or
serves a mount that the node's holder has (`spec.held`), which it never unmounts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from cachefs.core.errors import CacheFSError, ProtocolError
from cachefs.core.messages import Failure, failure_of
from cachefs.core.specs import ClientSpec, Held, OrphanedMount, Started, SupervisorSpec
from cachefs.fuse import failure_notes, mounting
from cachefs.fuse.kernel.mount import answer_init, mount
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.supervisor import events as e
from cachefs.fuse.supervisor import stale_mount_cleanup
from cachefs.fuse.supervisor import state as s
from cachefs.fuse.supervisor import wire as w
from cachefs.fuse.supervisor.held_mount import HeldMount
from cachefs.fuse.supervisor.process import Process
from cachefs.fuse.supervisor.upgrades import Upgrades
from cachefs.launcher.processes import stop_signals
from cachefs.launcher.ready import ReadyPipe
from cachefs.launcher.state import StateHome
from cachefs.network.unix_sockets import close_all

log = logging.getLogger("cachefs.supervisor")

LOOK_S: Final = 0.25  # between checks for processes whose main thread has ended
STACKS_SIGNAL: Final = signal.SIGUSR2


class Supervisor:
    """The supervisor of one mount. `run` returns the exit status."""

    def __init__(self, spec: SupervisorSpec, ready: ReadyPipe) -> None:
        self._spec: ClientSpec = spec.client
        self._ready = ready
        self._fuse_fd = -1
        self._table_fd = -1
        self._negotiated: Negotiated | None = None
        self._processes: dict[int, Process] = {}
        self._selector = selectors.DefaultSelector()
        self._looked_at = 0.0
        self._said_ending = False  # a client sent Ending here, and Leaving to the server
        self._exit: int | None = None
        self._upgrades = Upgrades(StateHome(spec.client.home), spec.client.mountpoint)
        self._first: e.Event = e.Begin()
        self._held_mount: HeldMount | None = None
        self._watched = -1  # descriptor of the connection to the holder
        timeout_s, wait_s = spec.client.heartbeat_timeout_s, spec.client.worker_wait_s
        if spec.held is not None:
            self._state = s.Supervision.of_held(timeout_s, wait_s)
            self._take(spec.held)
        elif spec.adopt is not None:
            self._state = s.Supervision.of_running(
                timeout_s,
                spec.adopt.pid,
                time.monotonic(),
                serving=spec.adopt.serving,
                held=spec.client.deposit is not None,
                worker_wait_s=wait_s,
            )
            self._adopt(spec.adopt)
        else:
            self._state = s.Supervision(timeout_s, wait_s)

    # ---- life cycle ----

    def run(self) -> int:
        """Runs until the mount has ended, was given up, or was left to the next supervisor."""
        with (
            stop_signals(self._selector, self._on_signal),
            self._upgrade_socket() as listener,
        ):
            if listener is not None:
                self._selector.register(listener, selectors.EVENT_READ, self._on_upgrade_request)
            if not self._processes:
                self._on(self._first)
            while self._exit is None:
                self._step()
        for process in self._processes.values():
            process.close()
        if self._held_mount is not None:
            self._held_mount.close()
        return self._exit

    def _upgrade_socket(self) -> contextlib.AbstractContextManager[socket.socket | None]:
        """Returns the socket for upgrades by commands. A held mount changes by claims instead; the
        name of one that was unmounted lazily may belong to the next mount."""
        is_replaced = self._fuse_fd >= 0 and mounting.is_replaced(self._spec)
        if self._held_mount is not None or is_replaced:
            return contextlib.nullcontext()
        return self._upgrades.listening()

    def _step(self) -> None:
        now = time.monotonic()
        for key, _ in self._selector.select(self._state.next_tick_s(now)):
            if self._exit is None:
                key.data()
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._look(now)
        self._on(e.Tick())
        if self._held_mount is not None and self._held_mount.tell(self._state.is_failing):
            self._on_holder()

    def _look(self, now: float) -> None:
        for process in [p for p in self._processes.values() if p.is_dead()]:
            self._ended(process)
        budget_bytes = self._spec.memory_budget_bytes
        for process in list(self._processes.values()) if budget_bytes else ():
            if process.anonymous_bytes() > budget_bytes:
                self._on(e.OverBudget(process.pid))
        if self._held_mount is not None and self._held_mount.keep(now):
            self._watch_holder()

    def _on(self, event: e.Event) -> None:
        for action in self._state.handle(event, time.monotonic()):
            self._do(action)

    def _on_signal(self) -> None:
        log.info("stopping: received a signal")
        self._on(e.StopRequested())

    def _adopt(self, adopt: OrphanedMount) -> None:
        self._take(Held(adopt.fuse_fd, adopt.table_fd, adopt.negotiated))
        if adopt.serving and self._held_mount is not None:
            self._claim()
        process = Process.adopt(adopt.pid, adopt.control_fd)
        if process is not None:
            self._add(process)
            log.info("supervising the client %d, whose supervisor was lost", adopt.pid)
        else:
            clean = self._is_gone()
            self._first = e.Ended(adopt.pid, clean=clean, killed=True)
            level = logging.INFO if clean else logging.WARNING
            log.log(level, "client %d ended together with its supervisor", adopt.pid)
        self._ready.say(Started(os.getpid()))

    # ---- the mount ----

    def _take(self, held: Held) -> None:
        """Takes the inherited descriptors of a mount."""
        self._fuse_fd, self._table_fd = held.fuse_fd, held.table_fd
        for fd in (self._fuse_fd, self._table_fd):
            os.set_inheritable(fd, False)
        self._negotiated = w.decode_negotiated(held.negotiated)
        self._state.can_take_over = self._negotiated.resend
        self._note_device(mounting.device_of(self._spec))
        ref = self._spec.deposit
        self._held_mount = HeldMount(self._spec, ref, held) if ref else None

    def _note_device(self, device: str) -> None:
        self._spec = msgspec.structs.replace(self._spec, device=device)

    def _claim(self) -> None:
        assert self._held_mount is not None
        exists = self._held_mount.claim()
        self._watch_holder()
        self._on(e.Claimed(exists))

    def _watch_holder(self) -> None:
        """Watches the present connection to the holder, if there is one."""
        if self._watched >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._watched)
        assert self._held_mount is not None
        self._watched = self._held_mount.fileno()
        if self._watched >= 0:
            self._selector.register(self._watched, selectors.EVENT_READ, self._on_holder)

    def _on_holder(self) -> None:
        assert self._held_mount is not None
        must_hand_over = self._held_mount.must_hand_over()
        if self._held_mount.fileno() < 0:
            self._watch_holder()
        if must_hand_over:
            log.info("another process claims the mount: handing over")
            self._on(e.HandOver())

    # ---- clients ----

    def _add(self, process: Process) -> None:
        self._processes[process.pid] = process

        def watch(what: int | socket.socket, call: Callable[[], None]) -> None:
            self._selector.register(what, selectors.EVENT_READ, call)

        watch(process.control, lambda: self._on_readable(process))
        watch(process.pidfd, lambda: self._ended(process))

    def _on_readable(self, process: Process) -> None:
        if self._processes.get(process.pid) is not process:
            return  # it ended in the same round
        try:
            note, fds = w.receive(process.control)
        except ProtocolError as err:  # a client of another version may send other messages
            return log.info("client %d: %s", process.pid, err)
        except OSError as err:
            log.warning("client %d: %s", process.pid, err)
            note, fds = None, []
        close_all(fds)
        if note is None:  # it ends, or is broken: its end or a missing heartbeat follows
            with contextlib.suppress(KeyError):
                self._selector.unregister(process.control)
            return
        self._on_note(process, note)

    def _on_note(self, process: Process, note: w.AnyControlMessage) -> None:
        pid = process.pid
        if isinstance(note, w.Ending):
            process.said_ending = self._said_ending = True
        elif isinstance(note, w.Ready):
            self._on(e.ClientReady(pid, note.warning))
        elif isinstance(note, w.Failed):
            self._on(e.ClientFailed(pid, note.failure))
        elif isinstance(note, w.Serving):
            self._on(e.ClientServing(pid))
        elif isinstance(note, w.Retired):
            self._on(e.ClientRetired(pid))
        elif isinstance(note, w.Beat):
            self._on(e.ClientBeat(pid))

    def _ended(self, process: Process) -> None:
        if self._processes.get(process.pid) is not process:
            return
        while self._has_notes(process):  # messages from before it ended
            self._on_readable(process)
        del self._processes[process.pid]
        with contextlib.suppress(KeyError):
            self._selector.unregister(process.control)
        self._selector.unregister(process.pidfd)
        # The exit status of a held mount's client also shows that it left the mount.
        well = self._is_gone() or (self._held_mount is None and process.ended_well())
        killed = process.was_killed()
        log.log(
            logging.INFO if well else logging.WARNING,
            "client %d has ended%s", process.pid, "" if well else " unexpectedly",
        )  # fmt: skip
        process.close()
        self._on(e.Ended(process.pid, well, killed))

    def _is_gone(self) -> bool:
        """Returns whether the mount has ended."""
        return self._fuse_fd >= 0 and mounting.has_ended(self._fuse_fd)

    def _has_notes(self, process: Process) -> bool:
        if process.control not in {key.fileobj for key in self._selector.get_map().values()}:
            return False
        try:
            return bool(process.control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except ConnectionResetError:  # reported once, before its last messages
            return True
        except OSError:
            return False

    # ---- actions ----

    def _do(self, action: e.Action) -> None:
        match action:
            case e.Start(upgrade):
                self._start(upgrade)
            case e.Mount():
                self._mount()
            case e.Claim():
                self._claim()
            case e.SendServe(pid, takeover):
                self._send_serve(pid, takeover)
            case e.SendRetire(pid):
                self._send(pid, w.Retire())
            case e.DumpStacks(pid):
                log.warning("client %d does not answer; its stacks are in the client's log", pid)
                self._signal(pid, STACKS_SIGNAL)
            case e.Kill(pid):
                log.warning("killing client %d", pid)
                self._signal(pid, signal.SIGKILL)
            case e.Terminate(pid):
                self._signal(pid, signal.SIGTERM)
            case e.AnnounceStarted(_, warning):
                self._ready.say(Started(os.getpid(), warning=warning))
            case e.AnnounceFailed(failure):
                self._ready.say(Started(os.getpid(), failure=failure))
            case e.AnnounceUpgraded(pid, failure):
                self._upgrades.answer(w.Upgraded(pid, failure))
            case e.NoteFailure(failure):
                self._note(failure)
            case e.GiveUp(cause):
                self._give_up(cause)
            case e.Leave(pid):
                self._send(pid, w.Leaving())
                self._exit = 0
            case e.Finish(code):
                self._exit = code

    def _note(self, failure: Failure | None) -> None:
        if failure is None:
            failure_notes.remove(self._spec.mountpoint)
        elif not self._is_gone():
            failure_notes.write(self._spec.mountpoint, failure)

    def _start(self, upgrade: bool) -> None:
        python = self._upgrades.python if upgrade else sys.executable
        try:
            process = Process.start(
                self._spec, python, successor=self._fuse_fd >= 0, held=self._held(upgrade)
            )
        except OSError as err:
            log.error("cannot start a client: %s", err)
            return self._on(e.NotStarted(f"{python}: {err.strerror}"))
        self._add(process)
        log.info("started client %d", process.pid)
        self._on(e.Started(process.pid))

    def _held(self, upgrade: bool) -> Held | None:
        """Returns the descriptors that keep the mount alive, for a client that is the only one. Of
        several clients with them, each would start another supervisor when this one is lost."""
        if self._negotiated is None or upgrade or self._processes:
            return None
        return Held(self._fuse_fd, self._table_fd, w.encode_negotiated(self._negotiated))

    def _mount(self) -> None:
        failure: Failure | None = None
        try:
            self._fuse_fd = mount(self._spec)
            self._note_device(mounting.device_at(self._spec.mountpoint))  # for `_give_up`
            self._negotiated = answer_init(self._fuse_fd, self._spec)
            self._table_fd = TakeoverTable.make()
        except (CacheFSError, OSError, subprocess.TimeoutExpired) as err:
            failure = failure_of(err if isinstance(err, CacheFSError) else CacheFSError(str(err)))
        else:
            mounting.raise_read_ahead(self._spec.device)
            mounting.raise_background(self._spec.device)
            self._state.can_take_over = self._negotiated.resend
        if failure is not None and self._fuse_fd >= 0:
            self._give_up(failure.cause)
        self._on(e.Mounted(failure))

    def _send_serve(self, pid: int, takeover: bool) -> None:
        assert self._negotiated is not None
        self._send(pid, w.Serve(self._negotiated, takeover), (self._fuse_fd, self._table_fd))

    def _send(self, pid: int, note: w.ControlMessage, fds: tuple[int, ...] = ()) -> None:
        process = self._processes.get(pid)
        if process is not None:
            try:
                w.send(process.control, note, fds)
            except OSError as err:  # it has ended, which is noticed separately
                log.warning("cannot send %s to client %d: %s", type(note).__name__, pid, err)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        process = self._processes.get(pid)
        if process is not None:
            process.signal(number)

    def _give_up(self, cause: str) -> None:
        """Unmounts if the mount still exists and is not held. Closing our descriptors ends the
        connection of a mount that is not held."""
        if self._held_mount is not None:
            log.info("leaving %s: %s", self._spec.mountpoint, cause)
            if self._is_gone():
                self._held_mount.drop()
        else:
            log.info("unmounting %s: %s", self._spec.mountpoint, cause)
            self._unmount()
        stale_mount_cleanup.remove_record(self._spec, {os.getpid(), *self._processes})
        for fd in (self._fuse_fd, self._table_fd):
            if fd >= 0:
                os.close(fd)
        self._fuse_fd = self._table_fd = -1
        if not self._said_ending:
            stale_mount_cleanup.announce_mount_end(self._spec.socket, self._spec.mountpoint)

    def _unmount(self) -> None:
        if not self._is_gone():  # else its device number may be that of the next mount here
            stale_mount_cleanup.unmount(self._spec, self._spec.device)
        if not self._is_gone():
            stale_mount_cleanup.abort(self._spec.device)

    # ---- upgrades ----

    def _on_upgrade_request(self) -> None:
        if self._upgrades.accept(foreground=self._spec.log_to_stderr):
            self._on(e.UpgradeRequested())
