"""The states of a view, and the transitions between them. Pure."""

from __future__ import annotations

import enum
from typing import Final


class ViewState(enum.Enum):
    RESUMED = "resumed"  # an earlier process laid covers of it; its names were not compared yet
    BUILDING = "building"  # files are loaded, names are linked
    READY = "ready"  # its tree shows what the mount shows; mounts may be covered
    UNCOVERING = "uncovering"  # covers are being removed
    WAITING = "waiting"  # to be built once it is quiet
    IMPOSSIBLE = "impossible"  # it cannot be built for a reason that an operator can change
    GONE = "gone"  # thawed


class ViewEvent(enum.Enum):
    SAME = "same"  # a resumed tree shows what the mount shows
    BUILT = "built"
    CHANGED = "changed"  # or may have: covers must go
    UNCOVERED = "uncovered"  # no cover is left
    DUE = "due"  # the pause is over
    FAILED = "failed"  # to be built, for now
    REFUSED = "refused"
    THAWED = "thawed"


class Refused(Exception):
    """The view cannot be built, for a reason that an operator can change."""


class InvalidViewEvent(Exception):
    """The state does not allow the event."""


_S, _E = ViewState, ViewEvent
TRANSITIONS: Final = {
    (_S.RESUMED, _E.SAME): _S.READY,
    (_S.RESUMED, _E.CHANGED): _S.UNCOVERING,
    (_S.BUILDING, _E.BUILT): _S.READY,
    (_S.BUILDING, _E.FAILED): _S.WAITING,
    (_S.BUILDING, _E.REFUSED): _S.IMPOSSIBLE,
    (_S.BUILDING, _E.THAWED): _S.GONE,
    (_S.READY, _E.CHANGED): _S.UNCOVERING,
    (_S.UNCOVERING, _E.UNCOVERED): _S.WAITING,
    (_S.WAITING, _E.DUE): _S.BUILDING,
    (_S.WAITING, _E.THAWED): _S.GONE,
    (_S.IMPOSSIBLE, _E.DUE): _S.BUILDING,
    (_S.IMPOSSIBLE, _E.THAWED): _S.GONE,
}
SHOWN: Final = {  # to people
    _S.RESUMED: "building",
    _S.BUILDING: "building",
    _S.READY: "ready",
    _S.UNCOVERING: "waiting",
    _S.WAITING: "waiting",
    _S.IMPOSSIBLE: "impossible",
    _S.GONE: "waiting",
}


def moved(state: ViewState, event: ViewEvent) -> ViewState:
    """Returns the next state. Raises InvalidViewEvent."""
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise InvalidViewEvent(f"{event.name} in {state.name}")
    return found


def is_shown(state: ViewState) -> bool:
    """Returns whether covers of the view may exist."""
    return state in (_S.RESUMED, _S.READY, _S.UNCOVERING)
