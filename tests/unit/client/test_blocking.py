"""The blocking client: several requests in flight, and the replies in any order."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from cachefs.client.blocking import BlockingClient
from cachefs.core import messages as m
from cachefs.core.errors import DeadlineExceeded, NotFound, Unreachable
from cachefs.core.model import NamespaceId

NAMESPACE = NamespaceId(bytes(16))


@pytest.fixture
def ends() -> Iterator[tuple[BlockingClient, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with BlockingClient(ours) as client, theirs:
        yield client, theirs


def listing(name: bytes) -> m.Listing:
    return m.Listing([], name, 1.0)


def test_each_request_gets_its_own_reply(ends: tuple[BlockingClient, socket.socket]) -> None:
    client, server = ends
    ids = [client.send(m.ListDir(NAMESPACE, ino, b"")) for ino in (1, 2, 3)]
    received = [m.decode(server.recv(1 << 16)) for _ in ids]
    assert [frame.id for frame in received] == ids
    server.send(m.encode(0, m.Invalidate(NAMESPACE, 7)))
    for id in reversed(ids[1:]):
        server.send(m.encode(id, listing(b"%d" % id)))
    server.send(m.encode(ids[0], m.failure_of(NotFound("no such file"))))
    assert client.reply_to(ids[1]) == listing(b"%d" % ids[1])
    with pytest.raises(NotFound):
        client.reply_to(ids[0])
    assert client.reply_to(ids[2]) == listing(b"%d" % ids[2])


def test_a_late_reply_to_a_cancelled_request_is_dropped(
    ends: tuple[BlockingClient, socket.socket],
) -> None:
    client, server = ends
    with pytest.raises(DeadlineExceeded):
        client.call(m.ListDir(NAMESPACE, 1, b""), timeout_s=0.01)
    late = m.decode(server.recv(1 << 16))
    cancel = m.decode(server.recv(1 << 16)).body
    assert cancel == m.Cancel(late.id)
    id = client.send(m.ListDir(NAMESPACE, 2, b""))
    server.send(m.encode(late.id, listing(b"late")))
    server.send(m.encode(id, listing(b"now")))
    assert client.reply_to(id) == listing(b"now")
    server.close()
    with pytest.raises(Unreachable):
        client.call(m.ListDir(NAMESPACE, 3, b""))
