"""A live content has one state, only its transitions change it, and docs/cache-states.md shows
them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from worker.tier.entry_state import (
    MOST_STEPS,
    TRANSITIONS,
    Event,
    InvalidTransition,
    State,
    Stories,
)

PAGE = Path(__file__).parents[3] / "docs/cache-states.md"
KEY, OTHER = bytes(36), bytes([1] * 36)


def rows(*header: str) -> list[tuple[str, ...]]:
    """The rows of the table of the page that begins with this header."""
    lines = PAGE.read_text().splitlines()
    start = lines.index("| " + " | ".join(header) + " |") + 2
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        found.append(tuple(cell.strip(" `") for cell in re.split(r" \| ", line.strip("| "))))
    return found


def test_the_page_has_every_state_event_and_transition() -> None:
    assert rows("state", "meaning") == [(state.name, state.value) for state in State]
    assert rows("event", "meaning") == [(event.name, event.value) for event in Event]
    shown = [(state.name, event.name, after.name) for (state, event), after in TRANSITIONS.items()]
    assert rows("in", "event", "then") == shown


def test_each_state_is_reached_and_all_but_the_last_are_left() -> None:
    begins = {State.LOOKING, State.EMPTY, State.DETACHED}
    assert {*TRANSITIONS.values()} | begins == {*State}
    assert {state for state, _ in TRANSITIONS} == {*State} - {State.GONE}
    assert {event for _, event in TRANSITIONS} == {*Event}


def test_what_is_dropped_is_never_published_again() -> None:
    after = {TRANSITIONS.get((State.DETACHED, event)) for event in Event} - {None}
    assert after == {State.DETACHED, State.GONE}


def test_a_story_is_that_of_one_content() -> None:
    stories = Stories()
    state = stories.move(KEY, State.LOOKING, Event.FOUND, 1.0)
    stories.move(OTHER, State.EMPTY, Event.SUBMITTED, 2.0)
    state = stories.move(KEY, state, Event.PUBLISH, 3.5)
    assert state is State.PUBLISHED
    assert stories.story(KEY) == ["1.000 FOUND -> RECORDED", "3.500 PUBLISH -> PUBLISHED"]


def test_an_event_that_cannot_occur_names_the_story() -> None:
    stories = Stories()
    state = stories.move(KEY, State.EMPTY, Event.UNUSED, 1.0)
    with pytest.raises(InvalidTransition, match=r"SUBMITTED of 00.* in GONE; .*1\.000 UNUSED"):
        stories.move(KEY, state, Event.SUBMITTED, 2.0)


def test_stories_are_bounded() -> None:
    stories = Stories()
    for _ in range(2 * MOST_STEPS):
        stories.move(KEY, State.RECORDED, Event.SUBMITTED, 0.0)
    assert len(stories.story(KEY)) == MOST_STEPS
