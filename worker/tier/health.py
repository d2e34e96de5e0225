"""Whether the tier's disk is to be used: normal, degraded for a while, or offline. Pure.

A disk that is full or answers errors takes no fills until some seconds later, when one is tried
again; what is cached is still read. An error calls for probes: a disk that answers none of them
rightly is offline (its directory may be gone), as is one that does not answer at all: nothing of it
is touched, reads go past it, until a probe of it succeeds. A tier whose index cannot be
written any more is offline until the worker is started again.

A sync that fails means that bytes which were written are lost. The tier takes nothing new then
until a trial, some MiB that are forced to the disk, succeeds.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Collection, Hashable
from typing import Final

FULL_PAUSE_S: Final = 10.0
ERROR_PAUSE_S: Final = 30.0
MOST_TRIAL_PAUSE_S: Final = 3600.0
TRIAL_DUE: Final = "bytes that were written to the disk are lost; a trial write is due"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

SUSPECT_S: Final = 1.0  # a call that takes longer calls for a probe
PROBE_LIMIT_S: Final = 3.0  # after a longer probe the disk counts as hanging
PROBE_PAUSE_S: Final = 1.0  # between probes of a disk that answers slowly, or with errors
MOST_GAP_S: Final = 1.0  # between looks; after a longer one no disk is blamed for it
STUCK_S: Final = 15.0  # a write that takes longer hangs, whatever probes say
MOST_BAD_PROBES: Final = 2  # in a row, then the disk is given up for now


class Health:
    """The health of a tier. `fault` returns whether the fault is new (to be logged); `writable`
    becomes true again after a while, `in_service` by `returned`."""

    def __init__(self) -> None:
        self.cause = ""
        self.faults = 0
        self.broken = 0  # faults that are no want of room: they call for a probe
        self.in_service = True
        self.losses = 0  # syncs that failed: bytes that were written were lost
        self.lost = False  # for good: its content cannot be relied on
        self.is_full = False  # the last fault was want of room
        self._until_s = 0.0
        self._degraded = False
        self._failures = 0  # syncs and trials that failed since one sync went well
        self._trial_at_s = 0.0  # 0: no trial is needed

    def writable(self, now_s: float) -> bool:
        return self.in_service and not self._trial_at_s and now_s >= self._until_s

    # ---- bytes that were lost ----

    def lost_writes(self, now_s: float) -> None:
        """Notes that a sync failed: nothing is written before a trial has reached the disk."""
        self.losses += 1
        self._put_trial_off(now_s)

    def trial_due(self, now_s: float) -> bool:
        return self.in_service and 0 < self._trial_at_s <= now_s

    def tried(self, now_s: float, *, reached_disk: bool) -> None:
        """Notes the end of a trial. After one that failed the next one is due twice as late."""
        if reached_disk:
            self._trial_at_s = 0.0
            self.cause = "" if self.cause == TRIAL_DUE else self.cause
        else:
            self._put_trial_off(now_s)

    def synced(self) -> None:
        """Notes a sync that went well, while the tier takes files."""
        if not self._trial_at_s:
            self._failures = 0

    def _put_trial_off(self, now_s: float) -> None:
        pause_s = min(ERROR_PAUSE_S * 2.0**self._failures, MOST_TRIAL_PAUSE_S)
        self._failures = min(self._failures + 1, 16)
        self._trial_at_s = now_s + pause_s

    # ---- whether it answers ----

    def fault(self, error: OSError, now_s: float) -> bool:
        """The disk failed. True when it was in order before."""
        news = not self._degraded
        self._degraded = True
        self.faults += 1
        self.is_full = is_full(error)
        self.broken += not self.is_full
        if self.in_service:
            self.cause = error.strerror or str(error)
        self._until_s = now_s + (FULL_PAUSE_S if is_full(error) else ERROR_PAUSE_S)
        return news

    def well(self) -> bool:
        """A write went well. True when it is news."""
        news, self._degraded = self._degraded, False
        self.cause = TRIAL_DUE if self._trial_at_s else ""
        self.is_full = False
        return news

    def left(self, cause: str = "the disk does not answer") -> None:
        """The disk does not answer, or not rightly."""
        self.in_service = self.is_full = False
        self.faults += 1
        self.cause = cause

    def returned(self) -> None:
        """It answers again: it is written to at once."""
        self.in_service = True
        self._until_s = 0.0
        self.well()

    def state(self, now_s: float) -> str:
        if not self.in_service:
            return "offline"
        return "degraded" if self._degraded or not self.writable(now_s) else "normal"


def is_full(error: OSError) -> bool:
    """Returns whether the disk is only full: it answers, then."""
    return error.errno in _FULL


class Act(enum.Enum):
    """The action after a check of the calls to the disk."""

    NOTHING = enum.auto()
    PROBE = enum.auto()  # start one; `probed` reports its end
    LEAVE = enum.auto()  # the tier leaves service
    RETURN = enum.auto()  # it is back


class Watch:
    """Detects a disk that hangs. A long call is no proof (a sync, the verification of a large
    file): it starts a probe, a small write and read, which decides.

    One probe runs at a time. While the tier is out of service a probe is in progress, or the next
    one is due after a pause. The tier returns with the first that succeeds while no call is stuck.
    """

    def __init__(self) -> None:
        self.in_service = True
        self._since: dict[Hashable, float] = {}
        self._suspected = False
        self._probe_since_s = -1.0  # below 0: none is in progress
        self._answered = False
        self._held = False  # out of service until `let_go`, however the disk answers
        self._bad_probes = 0  # in a row
        self._next_probe_s = 0.0
        self._looked_at_s = float("inf")

    def suspect(self) -> None:
        """Records a report that the disk does not answer."""
        self._suspected = True

    def hold(self) -> bool:
        """Takes the tier out of service until `let_go`. True when it was in service."""
        self._held = True
        was_in_service = self.in_service
        if was_in_service:
            self._leave()
        return was_in_service

    def let_go(self) -> None:
        """Lets the tier come back with the next probe that succeeds."""
        self._held = False

    def probed(self, now_s: float, *, answered: bool) -> None:
        """The probe ended; `answered`: with the right bytes. Another one follows a bad one."""
        self._probe_since_s = -1.0
        self._answered = answered
        self._bad_probes = 0 if answered else self._bad_probes + 1
        self._suspected |= not answered
        self._next_probe_s = now_s + PROBE_PAUSE_S

    def look(
        self,
        calls: Collection[Hashable],
        writes: Collection[Hashable],
        now_s: float,
        *,
        for_good: bool = False,
    ) -> Act:
        """Decides what to do. `calls`: everything in progress at the disk; `writes`: those of them
        that only a hanging disk slows down. Each has a key that no later call has. `for_good`: the
        tier must not be used any more, however its disk answers."""
        if for_good:
            return self._leave() if self.in_service else Act.NOTHING
        self._forgive(now_s)
        self._since = {call: self._since.get(call, now_s) for call in (*calls, *writes)}
        stuck = any(now_s - self._since[call] >= STUCK_S for call in writes)
        if self._probe_since_s >= 0:
            overdue = now_s - self._probe_since_s >= PROBE_LIMIT_S
            return self._leave() if self.in_service and (overdue or stuck) else Act.NOTHING
        if not self.in_service:
            return self._come_back_or_probe(now_s, stuck=stuck)
        if stuck or self._bad_probes >= MOST_BAD_PROBES:
            return self._leave()
        slow = any(now_s - since >= SUSPECT_S for since in self._since.values())
        if (slow or self._suspected) and now_s >= self._next_probe_s:
            return self._probe(now_s)
        return Act.NOTHING

    def _forgive(self, now_s: float) -> None:
        """This process was stopped, or starved: that was not the disk."""
        gap_s = now_s - self._looked_at_s
        self._looked_at_s = now_s
        if gap_s > MOST_GAP_S:
            self._since = {call: since + gap_s for call, since in self._since.items()}
            if self._probe_since_s >= 0:
                self._probe_since_s += gap_s

    def _probe(self, now_s: float) -> Act:
        self._suspected = self._answered = False
        self._probe_since_s = now_s
        return Act.PROBE

    def _leave(self) -> Act:
        self.in_service = self._answered = self._suspected = False
        self._bad_probes = 0
        return Act.LEAVE

    def _come_back_or_probe(self, now_s: float, *, stuck: bool) -> Act:
        if self._answered and not stuck and not self._held:
            self.in_service = True
            self._suspected = False
            return Act.RETURN
        return self._probe(now_s) if now_s >= self._next_probe_s else Act.NOTHING

    def check_invariants(self) -> None:
        assert not (self._answered and self._probe_since_s >= 0)
