"""A mount joins a server: one that was just ending is left for another, one that waits in vain for
its origin or its master is not asked again."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cachefs.cli.commands import mount
from cachefs.cli.settings import load_settings
from cachefs.core.errors import Unreachable
from cachefs.core.specs import Started
from cachefs.launcher.processes import Server

JOINED = Server("/socket", False, "")


class Clients:
    """What each start of a client comes to, and how long it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: tuple[float, bool]) -> None:
        self.now_s = 0.0
        self.left = list(outcomes)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(mount, "_find_server", lambda client: JOINED)
        monkeypatch.setattr(mount, "_start_client", self.start)

    def start(self, *_: Any) -> Started:
        took_s, succeeds = self.left.pop(0)
        self.now_s += took_s
        if not succeeds:
            raise Unreachable("no answer")
        return Started(1)


def start() -> tuple[Server, Started]:
    client: Any = None
    return mount._start(client, False)


def test_a_server_that_was_just_ending_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(monkeypatch, (0.1, False), (0.1, False), (0.5, True))
    assert start() == (JOINED, Started(1))
    assert not clients.left


def test_who_waited_in_vain_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(monkeypatch, (30.0, False), (0.1, True))
    with pytest.raises(Unreachable):
        start()
    assert len(clients.left) == 1


def test_flags_of_the_server_have_no_effect_on_a_running_one() -> None:
    chosen = load_settings({"cache_size": "1GiB", "metrics": "127.0.0.1:9", "uid": "7"}, None)
    line = mount._ignored(JOINED, chosen)
    assert line.startswith("without effect: --cache-size, --metrics; the running server keeps")
    assert mount._ignored(JOINED._replace(started=True), chosen) == ""
    assert mount._ignored(JOINED, load_settings({"uid": "7"}, None)) == ""
