"""Connecting to a server that does not accept."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from pathlib import Path

import pytest

from cachefs.client import sockets
from cachefs.core import messages as m
from cachefs.core.errors import ProtocolError, Unreachable
from tests.services.descriptors import no_descriptor_left


def test_a_full_queue_of_connections_is_waited_for_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "CONNECT_LIMIT_S", 0.2)
    path = str(tmp_path / "server.sock")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        contextlib.ExitStack() as stack,
    ):
        listener.bind(path)
        listener.listen(1)
        since_s = time.monotonic()
        with pytest.raises(Unreachable, match="accepts no connection"):
            _ = [stack.enter_context(sockets.connect_socket(path)) for _ in range(10)]
        assert 0.2 <= time.monotonic() - since_s < 10.0


def test_a_frame_is_whole_or_an_error(tmp_path: Path) -> None:
    """One that is cut off is never returned; one that lost its descriptor alone has its bytes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    held = os.open(tmp_path, os.O_RDONLY)
    with ours, theirs:
        for size, fds in ((7, [held]), (m.MAX_FRAME_BYTES + 1, [held]), (7, [held] * 5)):
            socket.send_fds(theirs, [b"x" * size], fds)
        with no_descriptor_left():
            with pytest.raises(sockets.DescriptorLost) as lost:
                sockets.receive(ours)
            with pytest.raises(ProtocolError):
                sockets.receive(ours)
        assert lost.value.data == b"x" * 7
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ProtocolError):
            sockets.receive(ours)
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(held)


def test_no_descriptor_for_a_connection_is_no_fault_of_the_server(tmp_path: Path) -> None:
    with no_descriptor_left(), pytest.raises(OSError) as caught:
        sockets.connect_socket(str(tmp_path / "server.sock"))
    assert caught.value.errno == errno.EMFILE


def test_a_connected_socket_has_no_limit(tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(1)
        with sockets.connect_socket(path) as sock:
            limit = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
            assert limit == bytes(16)
            assert sock.gettimeout() is None
