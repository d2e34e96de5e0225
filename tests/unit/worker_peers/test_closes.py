"""A read that is abandoned while it takes a reply reads nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cachefs.core.errors import Interrupted
from cachefs.core.model import ContentId, NamespaceId, Origin
from worker.fill.source import Purpose
from worker.peers import source
from worker.peers.source import PeerBody

ORIGIN = Origin(ContentId(NamespaceId(b"n" * 16), 1, 0, 1), "u", b"a", "etag", 10, 0)


class Reply:
    """A reply of a peer or of the origin: nothing of it may be read."""

    candidate = SimpleNamespace(url="http://peer")

    def __init__(self) -> None:
        self.closed = 0

    def pages(self, buffer: memoryview) -> Iterator[Any]:
        raise AssertionError("it was read")

    def __iter__(self) -> Iterator[memoryview]:
        raise AssertionError("it was read")

    def abort(self) -> None:
        raise AssertionError("the body has it not yet")

    def close(self) -> None:
        self.closed += 1


class Hunt:
    """A search that is closed by another thread just before it returns."""

    def __init__(self, reply: Reply | None, at_return: Callable[[], None]) -> None:
        self._reply = reply
        self._at_return = at_return

    def find(self, *_: object) -> Reply | None:
        self._at_return()
        return self._reply

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("is_of_peer", [True, False])
def test_a_close_while_the_reply_is_handed_over(
    is_of_peer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = Reply()

    def from_origin(*_: object) -> Reply:
        body.close()
        return reply

    cluster: Any = SimpleNamespace(
        take_buffer=lambda: bytearray(10), give_buffer=lambda _: None, from_origin=from_origin
    )
    hunt = Hunt(reply, lambda: body.close()) if is_of_peer else Hunt(None, lambda: None)
    monkeypatch.setattr(source, "PeerFetch", lambda *_: hunt)
    shared: Any = None
    body = PeerBody(cluster, shared, ORIGIN, (0, 1), [], Purpose.READ)
    with pytest.raises(Interrupted):
        list(body)
    assert reply.closed == 1
