"""The supervisor's decisions: `handle(event, now) -> actions`. Pure.

Clients are known by pid. At most one of them may read the device: the last one that got `Serve`.
The next one gets `Serve` only when that one has ended or has sent `Retired`. A client that ends or
hangs is replaced, the first times at once, then after growing pauses. After more than `MAX_DEATHS`
in a row the mount is given up, so that callers get an error and not a hang. A client that was
killed from outside is not at fault: it is replaced at once, up to `MAX_KILLS` times.

A held mount (`Supervision.of_held`) exists without a supervisor, too. The supervisor claims it when
its first client is ready, and hands it over when another process claims it: its client retires and
the supervisor ends. A stop signal leaves the mount in the same way.
"""

from __future__ import annotations

import enum
from typing import Final

from cachefs.core.errors import CacheFSError, Unreachable
from cachefs.core.messages import Failure
from cachefs.core.specs import HEARTBEATS
from cachefs.fuse.supervisor import events as e
from cachefs.fuse.supervisor.wire import BEAT_S

START_LIMIT_S: Final = 90.0  # minimum until a client is ready, which may have to start a server
SERVER_START_S: Final = 60.0  # for a client that starts a server after killing one that hangs
SERVE_LIMIT_S: Final = 20.0  # for a client to serve, to retire, and to end after that
STOP_LIMIT_S: Final = 30.0  # from the first signal to the end
DUMP_GRACE_S: Final = 1.0  # for the stacks to be written
MAX_DEATHS: Final = 10  # in a row: none of them served for `GOOD_S`
MAX_KILLS: Final = 100  # the same for clients that were killed from outside
RENEW_S: Final = 60.0  # between two replacements of clients over their budget
GOOD_S: Final = 0.5  # a request that kills every client is resent at once and kills within this
AT_ONCE: Final = 2  # deaths in a row after which the next client starts without a pause
PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 1.0
CANNOT_TAKE_OVER: Final = "the kernel cannot resend requests to a successor"


class Phase(enum.Enum):
    STARTING = enum.auto()  # connects to the server
    READY = enum.auto()  # waits for SendServe
    TOLD = enum.auto()  # got SendServe
    SERVING = enum.auto()
    RETIRING = enum.auto()  # got SendRetire
    RETIRED = enum.auto()  # reads no more


_BEFORE: Final = (Phase.STARTING, Phase.READY)


class Client:
    """A client's process. `since`: when it entered its phase."""

    __slots__ = (
        "beat_at", "dumped_at", "failed", "is_upgrade", "killed", "phase", "pid", "since",
        "warning",
    )  # fmt: skip

    def __init__(self, pid: int, now: float, *, is_upgrade: bool = False) -> None:
        self.pid = pid
        self.is_upgrade = is_upgrade
        self.phase = Phase.STARTING
        self.since = self.beat_at = now
        self.dumped_at: float | None = None
        self.killed = False
        self.failed = False  # it sent ClientFailed, and ends
        self.warning = ""

    def enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.since = self.beat_at = now

    @property
    def reads(self) -> bool:
        """True if the client may read the device."""
        return self.phase in (Phase.TOLD, Phase.SERVING, Phase.RETIRING)

    @property
    def has_served_well(self) -> bool:
        """True if the client served for `GOOD_S` up to its last heartbeat."""
        return self.phase is Phase.SERVING and self.beat_at - self.since >= GOOD_S


class Supervision:
    """The clients of one mount. A serving client without a heartbeat for `heartbeat_timeout_s`
    counts as hung. `can_take_over` is False if the kernel cannot resend requests: the first death
    then ends the mount."""

    def __init__(self, heartbeat_timeout_s: float, worker_wait_s: float = 0.0) -> None:
        self.can_take_over = True
        self._timeout_s = heartbeat_timeout_s
        server_limit_s = HEARTBEATS * heartbeat_timeout_s
        self._start_limit_s = max(START_LIMIT_S, server_limit_s + SERVER_START_S)
        if worker_wait_s:
            self._start_limit_s += worker_wait_s
        self._clients: dict[int, Client] = {}
        self._mounted = False
        self._announced = False
        self._stop_by: float | None = None  # deadline of a requested stop
        self._deaths = 0
        self._kills = 0
        self._start_at: float | None = None
        self._starting_upgrade = False
        self._is_held = False
        self._is_claimed = False  # or is being claimed
        self._renewed_at: float | None = None  # a client over its budget was replaced
        self.finished = False

    @classmethod
    def of_held(cls, heartbeat_timeout_s: float, worker_wait_s: float = 0.0) -> Supervision:
        """Returns the state of a supervisor of a held mount, which has no client here yet."""
        self = cls(heartbeat_timeout_s, worker_wait_s)
        self._mounted = self._announced = self._is_held = True
        return self

    @classmethod
    def of_running(
        cls,
        heartbeat_timeout_s: float,
        pid: int,
        now: float,
        *,
        serving: bool = True,
        held: bool = False,
        worker_wait_s: float = 0.0,
    ) -> Supervision:
        """Returns the state of a supervisor that the client `pid` started. That client serves, or
        will serve once it is ready."""
        self = cls(heartbeat_timeout_s, worker_wait_s)
        self._is_held = held
        self._is_claimed = held and serving
        self._mounted = self._announced = True
        client = self._clients[pid] = Client(pid, now)
        if serving:
            client.enter(Phase.SERVING, now)
        return self

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        """Returns the actions for an event; none after Finish or Leave."""
        if self.finished:
            return []
        actions = self._handle(event, now)
        self.finished = any(isinstance(a, e.Finish | e.Leave) for a in actions)
        return actions

    def next_tick_s(self, now: float) -> float:
        """Returns the seconds until the next Tick is due."""
        if self._start_at is not None:
            return max(0.0, min(self._start_at - now, BEAT_S))
        return BEAT_S

    @property
    def is_failing(self) -> bool:
        """True after two clients in a row that ended without service, until one serves."""
        return self._deaths + self._kills > 1

    # ---- events ----

    def _handle(self, event: e.Event, now: float) -> list[e.Action]:
        match event:
            case e.Begin():
                return [e.Start()]
            case e.Started(pid):
                self._clients[pid] = Client(pid, now, is_upgrade=self._starting_upgrade)
                self._starting_upgrade = False
                return []
            case e.NotStarted(cause):
                return self._on_not_started(cause, now)
            case e.Mounted(failure):
                return self._on_mounted(failure, now)
            case e.StopRequested():
                return self._on_stop(now)
            case e.UpgradeRequested():
                return self._on_upgrade()
            case e.Claimed(exists):
                return self._serve_next(now) if exists else self._stopped()
            case e.HandOver():
                return self._leave(now)
            case e.Tick():
                return self._on_tick(now)
        client = self._clients.get(event.pid)
        return [] if client is None else self._of_client(event, client, now)

    def _of_client(self, event: e.Event, client: Client, now: float) -> list[e.Action]:
        match event:
            case e.ClientReady(_, warning):
                return self._on_ready(client, warning, now)
            case e.ClientFailed(_, failure):
                return self._on_failed(client, failure)
            case e.ClientServing():
                return self._on_serving(client, now)
            case e.ClientBeat():
                client.beat_at = now
                if client.phase is Phase.SERVING:
                    client.dumped_at = None
                if client.has_served_well:
                    self._deaths = self._kills = 0
            case e.ClientRetired():
                return self._on_retired(client, now)
            case e.Ended(_, clean, killed):
                return self._on_ended(client, clean, killed, now)
            case e.OverBudget():
                return self._on_over_budget(client, now)
        return []

    def _on_not_started(self, cause: str, now: float) -> list[e.Action]:
        if self._starting_upgrade:
            self._starting_upgrade = False
            return _refused(cause)
        if not self._announced:
            return [e.AnnounceFailed(_failure(cause)), *self._kill_all(), e.Finish(1)]
        return self._on_death(now)

    def _on_ready(self, client: Client, warning: str, now: float) -> list[e.Action]:
        if client.phase is not Phase.STARTING or self._stop_by is not None:
            return []
        client.warning = warning
        client.enter(Phase.READY, now)
        if not self._mounted:
            return [e.Mount()]
        reader = self._reader()
        if reader is None:
            return self._serve_next(now)
        reader.enter(Phase.RETIRING, now)
        return [e.SendRetire(reader.pid)]

    def _on_mounted(self, failure: Failure | None, now: float) -> list[e.Action]:
        if failure is not None:
            return [e.AnnounceFailed(failure), *self._kill_all(), e.Finish(1)]
        self._mounted = True
        return self._serve_next(now)

    def _on_retired(self, client: Client, now: float) -> list[e.Action]:
        if client.phase is not Phase.RETIRING:
            return []
        client.enter(Phase.RETIRED, now)
        if self._stop_by is not None:
            return self._left()
        return self._serve_next(now)

    def _on_serving(self, client: Client, now: float) -> list[e.Action]:
        if client.phase is not Phase.TOLD:
            return []
        client.enter(Phase.SERVING, now)
        if client.is_upgrade:
            others = [e.Kill(c.pid) for c in self._clients.values() if c.phase in _BEFORE]
            return [e.AnnounceUpgraded(client.pid, None), *others, e.Leave(client.pid)]
        if self._announced:
            return [e.NoteFailure(None)] if self._is_held else []
        self._announced = True
        return [e.AnnounceStarted(client.pid, client.warning)]

    def _on_failed(self, client: Client, failure: Failure) -> list[e.Action]:
        if client.is_upgrade and not client.failed:
            client.failed = True
            return [e.AnnounceUpgraded(0, failure)]
        if self._announced:  # its Ended follows
            return [e.NoteFailure(failure)] if self._is_held else []
        return [e.AnnounceFailed(failure), *self._give_up(failure.cause)]

    def _on_ended(self, client: Client, clean: bool, killed: bool, now: float) -> list[e.Action]:
        del self._clients[client.pid]
        said: list[e.Action] = []
        if client.is_upgrade and not client.failed:
            said = _refused("the new client ended before it could serve")
        if self._stop_by is not None and self._is_held and self._reader() is not None:
            return said  # it retires
        # A client that starts ends clean if the held mount has been removed.
        ends_with_mount = (Phase.SERVING, *_BEFORE) if self._is_held else (Phase.SERVING,)
        is_gone = clean and client.phase in ends_with_mount
        if self._stop_by is not None or is_gone:
            return [*said, *self._stopped()]
        if not self._announced:
            cause = "the file system's process ended before it answered"
            code = Unreachable.code if killed and not client.killed else CacheFSError.code
            failure = Failure(code, cause)  # Unreachable: another start may succeed
            return [e.AnnounceFailed(failure), *self._give_up(cause)]
        if self._reader() is not None:
            return said  # another client serves the mount
        if client.phase in (Phase.RETIRING, Phase.RETIRED):
            return [*said, *self._serve_next(now)]
        return [*said, *self._on_death(now, killed=killed and not client.killed)]

    def _on_death(self, now: float, *, killed: bool = False) -> list[e.Action]:
        """Replaces a dead client or gives up. `killed`: from outside."""
        self._kills += killed
        self._deaths += not killed
        if not self.can_take_over:
            return self._give_up(CANNOT_TAKE_OVER)
        if self._deaths > MAX_DEATHS or self._kills > MAX_KILLS:
            count = self._deaths + self._kills
            return self._give_up(f"{count} clients died in a row")
        if any(c.phase is Phase.READY for c in self._clients.values()):
            return self._serve_next(now)
        more = 0 if killed else self._deaths - AT_ONCE
        pause_s = PAUSE_FIRST_S * 2 ** (more - 1) if more > 0 else 0.0
        self._start_at = now + min(pause_s, PAUSE_MAX_S)
        return self._on_tick(now)

    def _on_stop(self, now: float) -> list[e.Action]:
        if self._is_held:
            return self._leave(now)
        if self._stop_by is not None or not self._clients:
            return self._stopped()
        self._stop_by = now + STOP_LIMIT_S
        self._start_at = None
        return [e.Terminate(pid) for pid in self._clients]

    def _stopped(self) -> list[e.Action]:
        if self._is_held and self._stop_by is not None:
            return self._left()
        return [*self._kill_all(), e.GiveUp("stopped"), e.Finish(0)]

    def _leave(self, now: float) -> list[e.Action]:
        """Leaves a held mount to another process: the client that serves retires, the others end.
        A client that may not listen yet is killed, as its requests are sent again anyway."""
        if self._stop_by is not None:
            return []
        self._stop_by, self._start_at = now + SERVE_LIMIT_S, None
        reader = self._reader()
        if reader is None or reader.phase is Phase.TOLD:
            return self._left()
        others = [e.Kill(client.pid) for client in self._clients.values() if client is not reader]
        if reader.phase is Phase.RETIRING:
            return [*others]
        reader.enter(Phase.RETIRING, now)
        return [*others, e.SendRetire(reader.pid)]

    def _left(self) -> list[e.Action]:
        reading = [e.Kill(c.pid) for c in self._clients.values() if c.phase is not Phase.RETIRED]
        return [*reading, e.Finish(0)]

    def _on_over_budget(self, client: Client, now: float) -> list[e.Action]:
        """Starts a client that takes over from one that uses too much memory."""
        is_recent = self._renewed_at is not None and now - self._renewed_at < RENEW_S
        if client.phase is not Phase.SERVING or len(self._clients) > 1 or is_recent:
            return []
        if self._stop_by is not None or not self.can_take_over or self._starting_upgrade:
            return []
        self._renewed_at = now
        return [e.Start()]

    def _on_upgrade(self) -> list[e.Action]:
        reader = self._reader()
        others = [c for c in self._clients.values() if c is not reader and not c.failed]
        if reader is None or reader.phase is not Phase.SERVING or others:
            return _refused("another client is taking over the mount; try again")
        if self._stop_by is not None:
            return _refused("the mount is being unmounted")
        if not self.can_take_over:
            return _refused(CANNOT_TAKE_OVER)
        self._starting_upgrade = True
        return [e.Start(upgrade=True)]

    def _on_tick(self, now: float) -> list[e.Action]:
        if self._stop_by is not None and now >= self._stop_by:
            return self._stopped()
        actions: list[e.Action] = []
        if self._start_at is not None and now >= self._start_at:
            self._start_at = None
            actions.append(e.Start())
        for client in self._clients.values():
            actions += self._look_at(client, now)
        return actions

    def _look_at(self, client: Client, now: float) -> list[e.Action]:
        """Dumps the stacks of a hung client, then kills it."""
        if client.killed or client.phase is Phase.READY or not self._is_late(client, now):
            return []
        if client.dumped_at is None:
            client.dumped_at = now
            return [e.DumpStacks(client.pid)]
        if now - client.dumped_at < DUMP_GRACE_S:
            return []
        client.killed = True
        return [e.Kill(client.pid)]

    # ---- helpers ----

    def _is_late(self, client: Client, now: float) -> bool:
        """Returns whether a client hangs: no heartbeat while it serves, or past the time limit of
        another phase."""
        if client.phase is Phase.SERVING:
            return now - client.beat_at >= self._timeout_s
        limit_s = self._start_limit_s if client.phase is Phase.STARTING else SERVE_LIMIT_S
        return now - client.since >= limit_s

    def _reader(self) -> Client | None:
        return next((client for client in self._clients.values() if client.reads), None)

    def _serve_next(self, now: float) -> list[e.Action]:
        """Sends SendServe to a ready client if no client reads; starts one if none is starting."""
        if self._reader() is not None or self._stop_by is not None:
            return []
        ready = (c for c in self._clients.values() if c.phase is Phase.READY)
        client = next(ready, None)
        if client is None:
            starting = any(c.phase is Phase.STARTING for c in self._clients.values())
            if not starting and self._start_at is None:
                self._start_at = now
                return self._on_tick(now)
            return []
        if self._is_held and not self._is_claimed:
            self._is_claimed = True
            return [e.Claim()]
        client.enter(Phase.TOLD, now)
        self._start_at = None
        return [e.SendServe(client.pid, takeover=self._announced)]

    def _give_up(self, cause: str) -> list[e.Action]:
        return [*self._kill_all(), e.GiveUp(cause), e.Finish(1)]

    def _kill_all(self) -> list[e.Action]:
        return [e.Kill(pid) for pid in self._clients]


def _refused(cause: str) -> list[e.Action]:
    """Returns the answer to a requested upgrade that does not happen."""
    return [e.AnnounceUpgraded(0, _failure(cause))]


def _failure(cause: str) -> Failure:
    return Failure(CacheFSError.code, cause)
