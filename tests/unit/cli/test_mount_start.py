"""A mount joins a server: one that was just ending, or killed, is left for another; one that waits
in vain for its origin or its master is not asked again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

from cachefs.cli import mountpoint
from cachefs.cli.commands import mount
from cachefs.cli.settings import load_settings
from cachefs.core import messages as m
from cachefs.core.errors import InUse, Unreachable
from cachefs.core.specs import Started
from cachefs.launcher.processes import Server
from cachefs.launcher.state import StateHome

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


@pytest.mark.parametrize("server", [JOINED, JOINED._replace(started=True)])
def test_a_server_that_was_just_ending_or_killed_is_left(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    clients = Clients(monkeypatch, (0.1, False), (0.1, False), (0.5, True))
    monkeypatch.setattr(mount, "_find_server", lambda client: server)
    assert start() == (server, Started(1))
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


def test_one_command_at_a_time_mounts_on_a_directory(tmp_path: Path) -> None:
    where, home = str(tmp_path / "mnt"), StateHome(tmp_path / "home")
    with (
        mountpoint.reserved(where, home),
        mountpoint.reserved(f"{where}2", home),
        pytest.raises(InUse),
        mountpoint.reserved(where, home),
    ):
        pass
    with mountpoint.reserved(where, home):
        pass


def test_a_lock_of_another_user_on_the_mount_point_keeps_no_command_out(tmp_path: Path) -> None:
    where = tmp_path / "mnt"
    where.mkdir()
    fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with mountpoint.reserved(str(where), StateHome(tmp_path / "home")):
            pass
    finally:
        os.close(fd)


def test_a_library_keeps_the_server_of_a_mount_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[m.Message] = []

    class Client:
        def call(self, body: m.Message, _: float) -> m.Message:
            asked.append(body)
            return m.StatusReply({"mounts": [], "libraries": [{"pid": 1}]})

    monkeypatch.setattr(mount.BlockingClient, "connect", lambda _: contextlib.nullcontext(Client()))
    mount.stop_if_unused("/socket")
    assert asked == [m.Status()]
