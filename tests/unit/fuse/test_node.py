"""Questions to the server while the server is lost again and again."""

from __future__ import annotations

import pytest
import trio

from cachefs.client.connection import ConnectionLost
from cachefs.client.published import PublishedDirs
from cachefs.core import messages as m
from cachefs.fuse.server_calls import TRIES, ServerCalls

KILLS = 7


class DyingServer:
    """Loses the connection `losses` times before it answers."""

    def __init__(self, losses: int) -> None:
        self.published = PublishedDirs()
        self.epoch = 1
        self._losses = losses

    async def call(self, body: m.Message) -> tuple[m.Message, int | None]:
        if self._losses:
            self._losses -= 1
            self.epoch += 1
            raise ConnectionLost("the server ended the connection")
        return m.Done(), None

    def post(self, body: m.Message) -> None:
        raise AssertionError("nothing is posted")


def test_a_request_survives_a_server_that_is_killed_many_times() -> None:
    answer = trio.run(ServerCalls(DyingServer(KILLS)).request_in_epoch, m.Done(), m.Done)
    assert answer == (m.Done(), None, KILLS + 1)


def test_a_request_that_ends_every_server_is_sent_a_bounded_number_of_times() -> None:
    server = DyingServer(1000)
    with pytest.raises(ConnectionLost):
        trio.run(ServerCalls(server).ask, m.Done(), m.Done)
    assert server.epoch == TRIES + 1
