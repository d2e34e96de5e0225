"""What processes of other users get of a cluster on this machine: nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from cachefs.core.errors import AccessDenied, Unreachable
from cachefs.doors.owners import check_caller, check_listener
from tests.services.intruder import NOBODY

WAIT_S = 10.0
_KEPT: list[socket.socket] = []


def as_nobody(work: Callable[[], None]) -> Callable[[], None]:
    """Runs it in a process of another user; gives what ends that process."""
    done, release = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
            os.write(done[1], b"1")
            os.close(release[1])
            os.read(release[0], 1)
        finally:
            os._exit(0)
    os.close(done[1])
    os.close(release[0])
    assert os.read(done[0], 1) == b"1", "the process of the other user failed"
    os.close(done[0])

    def end() -> None:
        os.close(release[1])
        os.waitpid(pid, 0)

    return end


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(WAIT_S)
        yield made


def test_another_users_process_is_refused(listener: socket.socket) -> None:
    end = as_nobody(lambda: _KEPT.append(socket.create_connection(listener.getsockname())))
    try:
        accepted, peer = listener.accept()
        with accepted, pytest.raises(AccessDenied, match=f"not user {NOBODY}"):
            check_caller(accepted.getsockname(), peer)
    finally:
        end()


def test_another_users_listener_is_refused(listener: socket.socket) -> None:
    """It may have taken the port of a master that does not run."""
    address = listener.getsockname()
    listener.close()
    with pytest.raises(Unreachable):
        check_listener(address)
    end = as_nobody(lambda: _KEPT.append(socket.create_server(address)))
    try:
        with pytest.raises(AccessDenied, match=f"a process of user {NOBODY} listens"):
            check_listener(address)
    finally:
        end()
