"""The agent's shell: a poll loop around `state.Agency`, a connection to the holder, and the
supervisors that it started.

The agent serves nothing itself and holds no descriptor of a mount: supervisors do, and they outlive
it. Its end leaves every mount to the next agent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from cachefs.core.errors import CacheFSError
from cachefs.core.specs import DepositRef, Held, SupervisorSpec
from cachefs.fuse import failure_notes, mounting
from cachefs.fuse.agent import state as s
from cachefs.fuse.agent.facts import AgentFacts
from cachefs.fuse.deposits import Deposit, Event, HolderClient, kept_name
from cachefs.launcher.process_watch import ProcessId, Watch
from cachefs.launcher.processes import start_supervisor, stop_signals
from cachefs.network.unix_sockets import close_all

log = logging.getLogger("cachefs.agent")

STEP_S: Final = 0.1
RETRY_S: Final = 0.25  # between attempts to reach the holder
STOP_S: Final = 3.0  # for supervisors to leave their mounts


class AgentSpec(msgspec.Struct, frozen=True):
    """What an agent serves, and how. `name` is its name among the agents of its node."""

    holder: str  # path of the holder's socket
    worker_socket: str
    home: str
    name: str
    worker_wait_s: float = 600.0
    give_up_s: float = 900.0
    memory_budget_bytes: int = 0
    log_level: str = "info"
    log_json: bool = False
    ready_file: str = ""  # exists while every mount is served


def _reap_orphans() -> None:
    """Reaps processes whose parent has ended: in a container the agent is the first process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _abort_deposit(deposit: Deposit, fuse_fd: int, table_fd: int) -> None:
    """Aborts a mount, and closes its descriptors. The device number of one that has ended may be
    that of another mount by now. Raises OSError."""
    try:
        if not mounting.has_ended(fuse_fd):
            mounting.abort(deposit.device)
    finally:
        close_all((fuse_fd, table_fd))


class Agent:
    """The agent of one node."""

    def __init__(self, spec: AgentSpec, facts: AgentFacts | None = None) -> None:
        self.facts = facts or AgentFacts()
        self._spec = spec
        self._name = kept_name(spec.name)  # as events have it
        self._agency = s.Agency(self._name, spec.give_up_s)
        self._selector = selectors.DefaultSelector()
        self._holder: HolderClient | None = None
        self._retry_at = 0.0
        self._is_logged = False  # that the holder is away
        self._supervisors: dict[int, tuple[str, str, Watch]] = {}  # pid -> key, place
        self._is_stopping = False
        self._is_ready = False

    @property
    def is_healthy(self) -> bool:
        """True while the holder answers."""
        return self._holder is not None

    def run(self) -> int:
        """Runs until a stop signal; then the supervisors leave their mounts. Returns 0."""
        self._say_ready(False)
        with stop_signals(self._selector, self._on_signal):
            while not self._is_stopping:
                self._step()
            self._stop()
        return 0

    def _step(self) -> None:
        if self._holder is None:
            self._connect()
        for key, _ in self._selector.select(STEP_S):
            key.data()
        for pid in [pid for pid, (*_, watch) in self._supervisors.items() if watch.ended(0)]:
            key_, place, watch = self._supervisors.pop(pid)
            watch.__exit__()
            self._on(s.SupervisorEnded(key_, not failure_notes.lacks_directory(place)))
        if os.getpid() == 1:
            _reap_orphans()
        self._on(s.Tick())
        if self._agency.is_ready != self._is_ready:
            self._say_ready(self._agency.is_ready)

    def _on_signal(self) -> None:
        self._is_stopping = True

    def _stop(self) -> None:
        """Has the supervisors leave their mounts, and waits for them up to `STOP_S`."""
        log.info("stopping: %d supervisors leave their mounts", len(self._supervisors))
        self._say_ready(False)
        for *_, watch in self._supervisors.values():
            watch.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for *_, watch in self._supervisors.values():
            watch.ended(max(0.0, deadline - time.monotonic()))
            watch.__exit__()

    def _say_ready(self, is_ready: bool) -> None:
        self._is_ready = is_ready
        if not self._spec.ready_file:
            return
        path = Path(self._spec.ready_file)
        path.touch() if is_ready else path.unlink(missing_ok=True)

    # ---- the holder ----

    def _connect(self) -> None:
        now = time.monotonic()
        if now < self._retry_at:
            return
        self._retry_at = now + RETRY_S
        try:
            holder = HolderClient(self._spec.holder, self._spec.name)
        except CacheFSError as err:
            return self._log_away(err)
        try:
            claimants = holder.claimants(watch=True)
        except CacheFSError as err:
            holder.close()
            return self._log_away(err)
        self._holder, self._is_logged = holder, False
        self._selector.register(holder.fileno(), selectors.EVENT_READ, self._on_holder)
        log.info("connected to the holder, which has %d mounts", len(claimants))
        self._on(s.Connected(claimants))

    def _log_away(self, err: CacheFSError) -> None:
        log.log(logging.DEBUG if self._is_logged else logging.WARNING, "%s", err.one_line())
        self._is_logged = True

    def _on_holder(self) -> None:
        assert self._holder is not None
        try:
            events = self._holder.events()
        except CacheFSError as err:
            self._log_away(err)
            self._selector.unregister(self._holder.fileno())
            self._holder.close()
            self._holder = None
            return
        for event in events:
            self._on_event(event)

    def _on_event(self, event: Event) -> None:
        now = time.monotonic()
        self.facts.note(event, self._name, now)
        match event.verb:
            case "PUT":
                self._on(s.Put(event.key))
            case "DROP":
                self._on(s.Dropped(event.key))
            case "CLAIM":
                self._on(s.Claimed(event.key, event.name))
            case "FREE":
                self._on(s.Freed(event.key))

    # ---- actions ----

    def _on(self, event: s.Event) -> None:
        actions: Iterable[s.Action] = self._agency.handle(event, time.monotonic())
        self.facts.mounts = len(self._agency.keys)
        for action in actions:
            match action:
                case s.Start(key, cause):
                    self._start(key, cause)
                case s.Abort(key):
                    self._abort(key)

    def _start(self, key: str, cause: str) -> None:
        try:
            with HolderClient(self._spec.holder) as holder:
                found = holder.get(key)
            if found is None:
                return self._on(s.Dropped(key))
            self._start_supervisor(key, *found)
        except (CacheFSError, OSError) as err:
            text = err.one_line() if isinstance(err, CacheFSError) else str(err)
            log.error("cannot start a supervisor of %s: %s", key, text)
            return self._on(s.SupervisorEnded(key))
        self.facts.started(cause)

    def _start_supervisor(self, key: str, deposit: Deposit, fuse_fd: int, table_fd: int) -> None:
        spec, fds = self._spec, (fuse_fd, table_fd)
        client = msgspec.structs.replace(
            deposit.client,
            home=spec.home,
            socket=spec.worker_socket,
            worker_wait_s=spec.worker_wait_s,
            memory_budget_bytes=spec.memory_budget_bytes,
            log_file="",
            log_level=spec.log_level,
            log_to_stderr=True,
            log_json=spec.log_json,
            deposit=DepositRef(spec.holder, key, spec.name, deposit.device),
        )
        held = Held(fuse_fd, table_fd, deposit.negotiated)
        try:
            pid = start_supervisor(SupervisorSpec(client, held=held), fds)
        finally:
            close_all(fds)
        self._supervisors[pid] = key, client.mountpoint, Watch(ProcessId(pid))
        log.info("started supervisor %d of %s (%s)", pid, client.mountpoint, key)

    def _abort(self, key: str) -> None:
        """Aborts a mount that nothing could serve: its users get an error from now on."""
        log.error("no client could serve %s for %g s: aborting it", key, self._spec.give_up_s)
        try:
            with HolderClient(self._spec.holder) as holder:
                found = holder.get(key)
                if found is not None:
                    _abort_deposit(*found)
                    holder.drop(key)
        except (CacheFSError, OSError) as err:
            log.error("cannot abort %s: %s", key, err)
        self.facts.aborted += 1
