"""Connecting to a server that does not accept."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import pytest

from cachefs.client import sockets
from cachefs.core.errors import Unreachable


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


def test_a_connected_socket_has_no_limit(tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(1)
        with sockets.connect_socket(path) as sock:
            limit = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
            assert limit == bytes(16)
            assert sock.gettimeout() is None
