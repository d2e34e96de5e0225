"""The agent's decisions: `handle(event, now) -> actions`. Pure.

At its start the agent starts a supervisor for every mount of the holder, also for those that an
agent of an older pod serves: the new supervisor claims the mount when it can serve it, and the old
one hands over. From then on the agent starts supervisors only for mounts that no process claims. So
two agents of one node never take a mount from each other again and again.

A mount without a server for `give_up_s` is aborted: its users get an error, not a hang. A
claimant whose clients die or hang one after the other does not serve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec

GRACE_S: Final = 2.0  # for a client to replace its lost supervisor, which claims again
RETIRED_GRACE_S: Final = 4.0  # more for an agent whose mounts another one has claimed
PAUSE_FIRST_S: Final = 1.0  # after a supervisor that ended without a claim
PAUSE_MAX_S: Final = 30.0
MISSING_S: Final = 30.0  # for supervisors to deposit their mounts with a new holder
GOOD_S: Final = 10.0  # claims of this length, one after the other, count as service
FAILING_S: Final = 60.0  # the same for claims whose clients fail: two that hang take 42 s


# ---- events --------------------------------------------------------------------------------------


class Connected(msgspec.Struct, frozen=True):
    """The agent watches a holder. `claimants`: of every key, "" for none."""

    claimants: dict[str, str]


class Put(msgspec.Struct, frozen=True):
    key: str


class Dropped(msgspec.Struct, frozen=True):
    key: str


class Claimed(msgspec.Struct, frozen=True):
    """A process claims a mount. `name`: "" if it had the claim, and its clients fail."""

    key: str
    name: str


class Freed(msgspec.Struct, frozen=True):
    key: str


class SupervisorEnded(msgspec.Struct, frozen=True):
    """A supervisor that this agent started has ended, or could not be started. `has_path`: False if
    the cluster has no directory at the path of the mount."""

    key: str
    has_path: bool = True


class Tick(msgspec.Struct, frozen=True):
    """Time passed."""


Event = Connected | Put | Dropped | Claimed | Freed | SupervisorEnded | Tick


# ---- actions -------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True):
    """Start a supervisor of a mount. `cause`: "start", "new" or "lost"."""

    key: str
    cause: str


class Abort(msgspec.Struct, frozen=True):
    """Abort a mount that no process could serve, and drop it."""

    key: str


Action = Start | Abort


class _Mount:
    """A mount of the holder. `start_at`: when this agent starts a supervisor of it."""

    __slots__ = (
        "cause", "claimant", "has_path", "has_supervisor", "is_first", "missing_since", "pause_s",
        "served_since", "start_at", "unserved_since",
    )  # fmt: skip

    def __init__(self, now: float, claimant: str, start_at: float, cause: str) -> None:
        self.claimant = claimant
        self.start_at = start_at
        self.cause = cause
        self.is_first = False  # it starts although another process has the claim
        self.has_path = True  # as the last supervisor of this agent found
        self.has_supervisor = False  # of this agent
        self.missing_since = math.inf  # a holder that was started again does not know it yet
        self.pause_s = PAUSE_FIRST_S
        self.served_since = now if claimant else math.inf
        self.unserved_since = math.inf if claimant else now  # apart from claims that were too short

    def is_due(self, now: float) -> bool:
        is_free = not self.claimant or self.is_first
        return (
            is_free
            and self.missing_since == math.inf
            and not self.has_supervisor
            and now >= self.start_at
        )

    @property
    def is_unserved(self) -> bool:
        return self.served_since == math.inf

    def end_service(self, now: float, good_s: float) -> None:
        """Notes that nothing serves the mount. Only claims of `good_s` were a service."""
        if now - self.served_since >= good_s:
            self.unserved_since, self.pause_s = math.inf, PAUSE_FIRST_S
        self.served_since = math.inf
        self.unserved_since = min(self.unserved_since, now)


class Agency:
    """The mounts of a node, as the agent `name` sees them."""

    def __init__(self, name: str, give_up_s: float) -> None:
        self._name = name
        self._give_up_s = give_up_s
        self._mounts: dict[str, _Mount] = {}
        self._has_started = False
        self._is_retired = False

    def handle(self, event: Event, now: float) -> list[Action]:
        """Returns the actions for an event."""
        match event:
            case Connected(claimants):
                self._on_connected(claimants, now)
            case Put(key):
                self._on_put(key, now)
            case Dropped(key):
                self._mounts.pop(key, None)
            case Claimed(key, name):
                self._on_claimed(key, name, now)
            case Freed(key):
                self._on_freed(key, now)
            case SupervisorEnded(key, has_path):
                self._on_supervisor_ended(key, has_path, now)
            case Tick():
                pass
        return list(self._due(now))

    @property
    def is_ready(self) -> bool:
        """True when every mount is claimed, none by an older agent that hands over. A mount whose
        path is gone does not count: no agent can serve it anew."""
        waits = (m.has_path and (m.is_first or not m.claimant) for m in self._mounts.values())
        return self._has_started and not any(waits)

    @property
    def keys(self) -> list[str]:
        return list(self._mounts)

    def _on_put(self, key: str, now: float) -> None:
        mount = self._mounts.get(key)
        if mount is None:
            start_at = now + (RETIRED_GRACE_S if self._is_retired else 0.0)
            self._mounts[key] = _Mount(now, "", start_at, "new")
        elif mount.missing_since < math.inf:  # by its supervisor, which claims it next
            mount.missing_since = math.inf
            mount.start_at = max(mount.start_at, now + self._grace_s)

    def _on_connected(self, claimants: dict[str, str], now: float) -> None:
        is_first, self._has_started = not self._has_started, True
        for key in self._mounts.keys() - claimants.keys():
            self._on_freed(key, now)
            self._mounts[key].missing_since = now
        for key, claimant in claimants.items():
            mount = self._mounts.get(key)
            if mount is None:
                start_at = now if is_first else now + self._grace_s
                mount = self._mounts[key] = _Mount(now, claimant, start_at, "start")
                mount.is_first = is_first
                continue
            mount.missing_since = math.inf
            if claimant:
                self._on_claimed(key, claimant, now)
            else:
                self._on_freed(key, now)

    @property
    def _grace_s(self) -> float:
        return RETIRED_GRACE_S if self._is_retired else GRACE_S

    def _on_claimed(self, key: str, name: str, now: float) -> None:
        mount = self._mounts.get(key)
        if mount is None:
            return
        if not name:
            return mount.end_service(now, FAILING_S)
        if name == self._name or not mount.is_first:
            mount.is_first = False
            self._is_retired = name != self._name
        mount.claimant = name
        mount.served_since = min(mount.served_since, now)  # a hand-over does not interrupt it

    def _on_freed(self, key: str, now: float) -> None:
        mount = self._mounts.get(key)
        if mount is None or not mount.claimant:
            return
        mount.end_service(now, GOOD_S)
        mount.claimant, mount.cause = "", "lost"
        mount.start_at = max(mount.start_at, now + self._grace_s)

    def _on_supervisor_ended(self, key: str, has_path: bool, now: float) -> None:
        mount = self._mounts.get(key)
        if mount is None:
            return
        mount.has_supervisor, mount.has_path = False, has_path
        mount.start_at = max(mount.start_at, now + mount.pause_s)
        mount.pause_s = min(2 * mount.pause_s, PAUSE_MAX_S)

    def _due(self, now: float) -> Iterator[Action]:
        for key, mount in list(self._mounts.items()):
            if now - mount.missing_since >= MISSING_S:
                del self._mounts[key]  # it ended while there was no holder
            elif mount.is_unserved and now - mount.unserved_since >= self._give_up_s:
                del self._mounts[key]
                yield Abort(key)
            elif mount.is_due(now):
                mount.has_supervisor = True
                yield Start(key, mount.cause)
