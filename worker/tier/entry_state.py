"""The states of a live content of a tier, and their transitions. Pure. docs/cache-states.md shows
them in a diagram."""

from __future__ import annotations

import collections
import enum
from typing import Final

import msgspec

MOST_STEPS: Final = 4096  # of all contents of a tier, for `Stories.story`


class State(enum.Enum):
    """`value`: its meaning, in docs/cache-states.md too."""

    __hash__ = object.__hash__  # a state is equal to itself only; the hash of an Enum runs Python

    LOOKING = "a thread queries the index"
    EMPTY = "the index has nothing of it; its file may be incomplete and unrecorded"
    RECORDED = "the index has pages of it, or a record is submitted"
    PUBLISHED = "it is complete; clients open it without a request"
    DETACHED = "its file is unlinked, or the tier is bypassed; open handles read on"
    GONE = "no user is left; the entry is no longer in the catalog"


class Event(enum.Enum):
    """`value`: its meaning, in docs/cache-states.md too."""

    __hash__ = object.__hash__

    FOUND_NOTHING = "the lookup found no record"
    FOUND = "the lookup found pages"
    FOUND_PUBLISHED = "the lookup found a complete, published file"
    DISK_FAILED = "the disk gave no answer to the lookup"
    SUBMITTED = "pages were submitted to the index"
    COMMIT_FAILED = "the index refused a record, and has none"
    PUBLISH = "the record of the complete file is committed"
    DROPPED = "the content is removed while it is in use"
    UNUSED = "the last user left"


_S, _E = State, Event
TRANSITIONS: Final = {
    (_S.LOOKING, _E.FOUND_NOTHING): _S.EMPTY,
    (_S.LOOKING, _E.FOUND): _S.RECORDED,
    (_S.LOOKING, _E.FOUND_PUBLISHED): _S.PUBLISHED,
    (_S.LOOKING, _E.DISK_FAILED): _S.DETACHED,
    (_S.EMPTY, _E.SUBMITTED): _S.RECORDED,
    (_S.EMPTY, _E.COMMIT_FAILED): _S.EMPTY,  # the second of two
    (_S.EMPTY, _E.PUBLISH): _S.EMPTY,  # an earlier record failed: it has pages that are lost
    (_S.EMPTY, _E.DROPPED): _S.DETACHED,
    (_S.EMPTY, _E.UNUSED): _S.GONE,
    (_S.RECORDED, _E.SUBMITTED): _S.RECORDED,
    (_S.RECORDED, _E.COMMIT_FAILED): _S.EMPTY,
    (_S.RECORDED, _E.PUBLISH): _S.PUBLISHED,
    (_S.RECORDED, _E.DROPPED): _S.DETACHED,
    (_S.RECORDED, _E.UNUSED): _S.GONE,
    (_S.PUBLISHED, _E.SUBMITTED): _S.PUBLISHED,  # a hold, or the measured allocation
    (_S.PUBLISHED, _E.PUBLISH): _S.PUBLISHED,
    (_S.PUBLISHED, _E.DROPPED): _S.DETACHED,
    (_S.PUBLISHED, _E.UNUSED): _S.GONE,
    (_S.DETACHED, _E.COMMIT_FAILED): _S.DETACHED,  # of records submitted before
    (_S.DETACHED, _E.PUBLISH): _S.DETACHED,
    (_S.DETACHED, _E.UNUSED): _S.GONE,
}  # fmt: skip


def of_lookup(found: bool, *, published: bool) -> Event:
    """Returns the event of a lookup that the disk has answered."""
    if not found:
        return Event.FOUND_NOTHING
    return Event.FOUND_PUBLISHED if published else Event.FOUND


class Step(msgspec.Struct, frozen=True, gc=False):
    """A transition of one content. `at_s`: monotonic clock."""

    at_s: float
    key: bytes
    event: Event
    state: State  # after it


class InvalidTransition(RuntimeError):
    """An event in a state in which it cannot occur: a bug."""


class Stories:
    """The latest transitions of a tier's contents, for debugging."""

    def __init__(self) -> None:
        self._steps: collections.deque[Step] = collections.deque(maxlen=MOST_STEPS)

    def move(self, key: bytes, state: State, event: Event, at_s: float) -> State:
        """Returns the state after an event. Raises InvalidTransition."""
        after = TRANSITIONS.get((state, event))
        if after is None:
            story = "; ".join(self.story(key)) or "none known"
            raise InvalidTransition(
                f"{event.name} of {key.hex()} in {state.name}; its latest transitions: {story}"
            )
        self._steps.append(Step(at_s, key, event, after))
        return after

    def story(self, key: bytes) -> list[str]:
        """Returns the latest transitions of a content as lines, the oldest first."""
        return [
            f"{step.at_s:.3f} {step.event.name} -> {step.state.name}"
            for step in self._steps
            if step.key == key
        ]
