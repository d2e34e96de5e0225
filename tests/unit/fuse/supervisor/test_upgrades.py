"""The request for an upgrade, while one supervisor replaces the other."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cachefs.core.errors import Unreachable
from cachefs.fuse.supervisor import upgrades
from cachefs.fuse.supervisor import wire as w
from cachefs.launcher.state import StateHome

MOUNTPOINT = "/mnt/data"
LIMIT_S = 10.0


@pytest.fixture
def home(tmp_path: Path) -> StateHome:
    made = StateHome(tmp_path)
    made.control_socket(MOUNTPOINT).parent.mkdir(parents=True, exist_ok=True)
    return made


def listen(home: StateHome) -> socket.socket:
    path = home.control_socket(MOUNTPOINT)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.settimeout(LIMIT_S)
    listener.bind(os.fspath(path))
    listener.listen(1)
    return listener


def answer(listener: socket.socket) -> None:
    with listener, listener.accept()[0] as sock:
        sock.settimeout(LIMIT_S)
        assert isinstance(w.receive(sock)[0], w.Upgrade)
        w.send(sock, w.Upgraded(7))


def end_with_the_request(listener: socket.socket) -> None:
    """Ends with a request in the queue."""
    sock, _ = listener.accept()
    sock.settimeout(LIMIT_S)
    sock.recv(1, socket.MSG_PEEK)
    listener.close()
    sock.close()


def end_without_an_answer(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    sock.settimeout(LIMIT_S)
    w.receive(sock)
    listener.close()
    sock.close()


ENDS = [end_with_the_request, end_without_an_answer]


@pytest.mark.parametrize("end", ENDS)
def test_the_supervisor_that_follows_is_asked(
    home: StateHome, end: Callable[[socket.socket], None]
) -> None:
    former = listen(home)

    def both() -> None:
        end(former)
        answer(listen(home))

    thread = threading.Thread(target=both)
    thread.start()
    assert upgrades.ask(home, MOUNTPOINT, "/usr/bin/python3") == 7
    thread.join(LIMIT_S)


def test_supervisors_that_never_answer_are_reported(home: StateHome) -> None:
    def both() -> None:
        end_without_an_answer(listen(home))
        end_without_an_answer(listen(home))

    thread = threading.Thread(target=both)
    thread.start()
    with pytest.raises(Unreachable, match="ended before it answered"):
        upgrades.ask(home, MOUNTPOINT, "/usr/bin/python3")
    thread.join(LIMIT_S)
