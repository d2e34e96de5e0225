"""When a client takes its server for one that hangs."""

from __future__ import annotations

from cachefs.fuse.server_watch import LOOK_S, PING_S, Act, Silence

LIMIT_S = 30.0


class Client:
    """Looks every `LOOK_S`, unless time is made to jump."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.heard = 0
        self.silence = Silence(LIMIT_S, self.now)
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
