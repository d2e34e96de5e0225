"""Whose connections there are on loopback."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from cachefs.core.errors import AccessDenied
from cachefs.network import socket_owners
from cachefs.network.socket_owners import UnknownListener, check_caller, check_listener

WAIT_S = 10.0
FAMILIES = pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(WAIT_S)
        yield made


@FAMILIES
def test_a_process_of_this_user_may_ask(family: socket.AddressFamily, host: str) -> None:
    with socket.create_server((host, 0), family=family) as made:
        with socket.create_connection(made.getsockname()[:2]) as client:
            accepted, peer = made.accept()
            with accepted:
                check_caller(accepted.getsockname(), peer)
        check_listener(made.getsockname())
        assert client.fileno() < 0


def test_an_ipv4_caller_of_a_server_of_both_families() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as made:
        made.settimeout(WAIT_S)
        with socket.create_connection(("127.0.0.1", made.getsockname()[1])):
            accepted, peer = made.accept()
            with accepted:
                assert peer[0] == "::ffff:127.0.0.1"
                check_caller(accepted.getsockname(), peer)
        check_listener(("127.0.0.1", made.getsockname()[1]))


def test_a_connection_that_its_process_closed_is_nobodys(listener: socket.socket) -> None:
    """The kernel answers uid 0 for it: whoever asks and closes at once would be taken for root."""
    with socket.create_connection(listener.getsockname()):
        accepted, peer = listener.accept()
    with accepted, pytest.raises(AccessDenied, match="reports no owner"):
        check_caller(accepted.getsockname(), peer)


def test_no_connection_is_nobodys(listener: socket.socket) -> None:
    for peer in (("127.0.0.1", 1), ("", 0), ("/path", 0)):
        with pytest.raises(AccessDenied):
            check_caller(listener.getsockname(), peer)
    with pytest.raises(AccessDenied):  # a listener at the caller's port is no connection
        check_caller(("127.0.0.1", 1), listener.getsockname())


def test_addresses_of_other_machines_are_not_judged() -> None:
    for local in (None, ("192.0.2.2", 5)):
        check_listener(("192.0.2.1", 1), local)
        check_listener(("name.example", 1), local)


def test_an_address_of_the_network_that_is_this_machines_is_judged() -> None:
    """Another user may listen at it in place of a worker that ended."""
    for peer, local in [("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1")]:
        with pytest.raises(UnknownListener):
            check_listener((peer, 1), (local, 5))


def test_a_listener_that_has_accepted_or_not(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as client:
        check_listener(client.getpeername(), client.getsockname())
        accepted, _ = listener.accept()
        listener.close()
        with accepted:
            check_listener(client.getpeername(), client.getsockname())


def test_a_kernel_that_does_not_tell(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not said that nobody listens, and what helps is named."""

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))

    monkeypatch.setattr(socket_owners, "_query", refuse)
    check_listener(listener.getsockname())
    with (
        socket.create_connection(listener.getsockname()) as client,
        pytest.raises(UnknownListener, match=r"reports no owner .* --token-file"),
    ):
        check_listener(client.getpeername(), client.getsockname())
