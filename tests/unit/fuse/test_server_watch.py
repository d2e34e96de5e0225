"""When a client takes its server for one that hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import trio
import trio.testing

from cachefs.client.connection import Connection
from cachefs.fuse import hang_watch
from cachefs.fuse.hang_watch import LOOK_S, PING_S, Act, HangDetector, ServerWatch

LIMIT_S = 30.0


class Client:
    """Looks every `LOOK_S`, unless time is made to jump."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.heard = 0
        self.silence = HangDetector(LIMIT_S, self.now)
        self.look()

    def look(self, after_s: float = LOOK_S) -> Act:
        self.now += after_s
        return self.silence.look(self.heard, self.now)

    def looks(self, count: int, after_s: float = LOOK_S) -> list[Act]:
        acts = [self.look(after_s) for _ in range(count)]
        return [act for act in acts if act is not Act.NONE]


def test_a_server_that_is_heard_is_not_asked() -> None:
    client = Client()
    for _ in range(1000):
        client.heard += 1
        assert client.look() is Act.NONE


def test_a_silent_server_is_asked_and_then_ended() -> None:
    client = Client()
    began_s = client.now
    while client.look() is not Act.PING:
        pass
    assert client.now - began_s == PING_S
    while client.look() is not Act.END:
        pass
    assert client.now - began_s == PING_S + LIMIT_S


def test_any_answer_will_do() -> None:
    client = Client()
    for _ in range(20):
        assert client.looks(int((PING_S + LIMIT_S) / LOOK_S) - 1) == [Act.PING]
        client.heard += 1
        assert client.look() is Act.NONE


def test_one_that_does_not_end_is_ended_again_at_a_bounded_rate() -> None:
    client = Client()
    acts = client.looks(int(10 * (PING_S + LIMIT_S) / LOOK_S))
    assert acts == [Act.PING, Act.END] * 10


def test_time_in_which_the_client_did_not_run_does_not_count() -> None:
    """A machine that was suspended for an hour, a client that was stopped again and again."""
    client = Client()
    client.looks(int(PING_S / LOOK_S))
    assert client.look(3600.0) is Act.NONE
    client.heard += 1
    client.look()
    assert client.looks(4, 3600.0) == [Act.PING]
    assert client.looks(int(LIMIT_S / (2 * LOOK_S)) - 3, 3600.0) == []


class Conn:
    """A connection whose server answers each question, unless it hangs."""

    def __init__(self) -> None:
        self.epoch = 1
        self.heard = 0
        self.server_pid = 4711
        self.is_connected = True
        self.hangs = False
        self.pings = 0

    def ping(self) -> None:
        if self.is_connected:
            self.pings += 1
            self.heard += not self.hangs

    def lose(self) -> None:
        self.is_connected = False
        self.epoch += 1


class Server:
    """Counts how often it is killed."""

    pid = 4711
    kills = 0

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()

    def end(_server: Server) -> bool:
        server.kills += 1
        return True

    monkeypatch.setattr(hang_watch.hung_server, "find_server", lambda _path, _pid: server)

    async def inline(call: Callable[..., object], *args: object, abandon_on_cancel: bool) -> object:
        return call(*args)  # the clock would go on meanwhile

    monkeypatch.setattr(hang_watch.hung_server, "end", end)
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return server


async def watched(conn: Conn, nursery: trio.Nursery) -> None:
    watch = ServerWatch(cast(Connection, conn), lambda: "/nowhere/server.sock", LIMIT_S)
    nursery.start_soon(watch.run)
    await trio.sleep(LOOK_S / 2)  # between two looks from now on


@pytest.mark.parametrize("down_s", [PING_S - LOOK_S, PING_S, PING_S + LOOK_S, 2 * LIMIT_S])
def test_the_next_server_is_not_killed_for_the_silence_of_a_reconnect(
    server: Server, down_s: float
) -> None:
    """The mount is idle, so nothing but the watch makes the server say anything."""

    async def scenario() -> None:
        conn = Conn()
        async with trio.open_nursery() as nursery:
            await watched(conn, nursery)
            await trio.sleep(10 * LOOK_S)
            for _ in range(4):
                conn.lose()
                await trio.sleep(down_s)
                conn.is_connected = True
                await trio.sleep(3 * LIMIT_S)
            nursery.cancel_scope.cancel()
        assert server.kills == 0
        assert conn.pings > 4 * LIMIT_S / PING_S / 2

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_server_that_hangs_from_its_start_is_killed(server: Server) -> None:
    async def scenario() -> None:
        conn = Conn()
        async with trio.open_nursery() as nursery:
            await watched(conn, nursery)
            conn.lose()
            await trio.sleep(PING_S)
            conn.is_connected, conn.hangs = True, True
            await trio.sleep(PING_S + LIMIT_S + 4 * LOOK_S)
            nursery.cancel_scope.cancel()
        assert server.kills == 1

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
