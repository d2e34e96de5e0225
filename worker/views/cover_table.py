"""The covers of one view on the mounts of a node, as far as the worker knows. Pure.

A mount has at most one command in flight: a removal waits for the report about the cover that is
being laid. So a report is never taken for the reply to another command. A cover whose client ended
counts until a client of the same mount reports about it.
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

H = TypeVar("H")


class CoverState(enum.Enum):
    LAYING = "laying"  # Cover was sent
    LAID = "laid"
    LEAVING = "leaving"  # Cover was sent, and Uncover follows its report
    REMOVING = "removing"  # Uncover was sent


class CoverTable(Generic[H]):
    """`H`: a mount. `uncertain`: after a start, mounts may have covers that were not reported."""

    def __init__(self, *, uncertain: bool = False) -> None:
        self._states: dict[H, CoverState] = {}
        self._orphans: set[str] = set()  # mount points whose client ended
        self.uncertain = uncertain
        self.is_leaving = False  # no cover is laid any more

    @property
    def count(self) -> int:
        """The number of mounts that are covered."""
        laid = sum(state is CoverState.LAID for state in self._states.values())
        return laid + len(self._orphans)

    def is_laid(self, host: H) -> bool:
        return self._states.get(host) is CoverState.LAID

    @property
    def is_clear(self) -> bool:
        """True if no mount has, or gets, a cover."""
        return not (self._states or self._orphans or self.uncertain)

    @property
    def orphans(self) -> frozenset[str]:
        """The mount points whose client ended, and whose covers no other client has reported."""
        return frozenset(self._orphans)

    def settle(self, orphans: frozenset[str]) -> None:
        """Notes that the kernel has no cover: neither of these mount points, nor one that was never
        reported. Clients that are here report for themselves."""
        self.uncertain = False
        self._orphans -= orphans

    def lay(self, host: H) -> bool:
        """Returns whether Cover is to be sent to a mount."""
        if self.is_leaving or host in self._states:
            return False
        self._states[host] = CoverState.LAYING
        return True

    def report(self, host: H, *, covered: bool) -> bool:
        """Takes a report. Returns whether Uncover is to be sent."""
        state = self._states.get(host)
        if not covered:
            self._states.pop(host, None)
            return False
        if state is CoverState.REMOVING:
            return False  # its own report follows
        if self.is_leaving or state is CoverState.LEAVING:
            self._states[host] = CoverState.REMOVING
            return True
        self._states[host] = CoverState.LAID
        return False

    def heard(self, mountpoint: str) -> None:
        """Notes that a client of this mount reported about the cover: it knows the mount."""
        self._orphans.discard(mountpoint)

    @property
    def hosts(self) -> list[H]:
        """The mounts that have, or get, a cover."""
        return [*self._states]

    def leave(self) -> list[H]:
        """Begins the removal of all covers. Returns the mounts to which Uncover is to be sent."""
        self.is_leaving = True
        laid = [host for host, state in self._states.items() if state is CoverState.LAID]
        for host, state in self._states.items():
            self._states[host] = CoverState.LEAVING if state is CoverState.LAYING else state
        for host in laid:
            self._states[host] = CoverState.REMOVING
        return laid

    def end(self, host: H, mountpoint: str, *, is_followed: bool) -> None:
        """Notes the end of a client. `is_followed`: its mount continues, with its covers."""
        if self._states.pop(host, None) is not None and is_followed:
            self._orphans.add(mountpoint)

    def follow(self, host: H, mountpoint: str) -> bool:
        """Notes the client of a mount that an earlier client may have covered. Returns whether it
        did: then Cover, or Uncover if `is_leaving`, is to be sent."""
        if mountpoint not in self._orphans:
            return False
        self._orphans.discard(mountpoint)
        self._states[host] = CoverState.REMOVING if self.is_leaving else CoverState.LAYING
        return True

    def check_invariants(self) -> None:
        for state in self._states.values():
            if self.is_leaving:
                assert state in (CoverState.LEAVING, CoverState.REMOVING)
            else:
                assert state in (CoverState.LAYING, CoverState.LAID)
