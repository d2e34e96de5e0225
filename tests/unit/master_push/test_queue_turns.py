"""When the reader of a queue pauses: a request costs the same for one message as for ten."""

from __future__ import annotations

import pytest

from master.push.queue_feed import GATHER_S, MOST_RECEIVED, Turn


@pytest.mark.parametrize(
    ("received", "pause_s"),
    [(0, 0.0), (1, GATHER_S), (MOST_RECEIVED - 1, GATHER_S), (MOST_RECEIVED, 0.0)],
)
def test_messages_gather_where_none_are_left(received: int, pause_s: float) -> None:
    """After an empty reply the next request waits at the queue; a full turn has left some."""
    assert Turn(0.0, True, received).pause_s == pause_s
