"""Processes listen at one name after the other, and no connection is refused in between."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachefs.network.socket_name import STALE_S, SocketName


class Listening:
    """A process's socket with its name."""

    def __init__(self, path: Path) -> None:
        self.name = SocketName(str(path))
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(self.name.hidden)
        self.sock.listen()
        self.sock.setblocking(False)

    def is_reached(self, path: Path) -> bool:
        """Returns whether a connection to the path comes here."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            try:
                self.sock.accept()[0].close()
            except BlockingIOError:
                return False
            return True


Listen = Callable[[Path], Listening]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one.sock"


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Makes sockets, and closes them at the end."""
    with contextlib.ExitStack() as stack:

        def made(path: Path) -> Listening:
            one = Listening(path)
            stack.callback(one.sock.close)
            return one

        yield made


def test_a_successor_takes_the_name(path: Path, listen: Listen) -> None:
    old, new = listen(path), listen(path)
    old.name.take()
    assert old.is_reached(path)
    new.name.take()
    assert new.is_reached(path)
    assert not old.name.keep()
    old.name.release()
    assert new.is_reached(path)
    new.name.release()
    new.name.release()
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_former_one_takes_the_name_again(path: Path, listen: Listen, is_killed: bool) -> None:
    old, new = listen(path), listen(path)
    old.name.take()
    new.name.take()
    new.sock.close()
    if not is_killed:
        new.name.release()
    assert old.name.keep()
    assert old.is_reached(path)
    assert not old.name.keep()


def test_a_process_that_does_not_accept_keeps_its_name(path: Path, listen: Listen) -> None:
    old, new = listen(path), listen(path)
    new.sock.listen(0)
    new.name.take()
    clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(str(path))
    assert not old.name.keep()
    for client in clients:
        client.close()


def test_what_killed_processes_left_is_removed(
    path: Path, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, alive = listen(path), listen(path)
    dead.sock.close()
    (path.parent / ".other").touch()
    SocketName(str(path))
    assert os.path.exists(dead.name.hidden)  # another process may have bound it a moment ago
    now = os.stat(dead.name.hidden).st_ctime
    monkeypatch.setattr("time.time", lambda: now + STALE_S + 1)
    SocketName(str(path))
    assert not os.path.exists(dead.name.hidden)
    assert os.path.exists(alive.name.hidden)
    assert os.path.exists(path.parent / ".other")
