"""The answers of a session about announced orders."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, ProtocolError

if TYPE_CHECKING:
    from worker.server.session import Session


def answer(session: Session, body: m.Message) -> m.Message:
    """Returns the reply to `AnnounceOrder`, `EndOrder` or `OrderState`. Raises what they raise."""
    ahead = session.server.ahead
    assert isinstance(body, m.AnnounceOrder | m.EndOrder | m.OrderState)
    session.server.service(body.namespace)  # raises NotFound
    if isinstance(body, m.OrderState):
        return ahead.orders.book.state(session, body.namespace, body.name)
    if isinstance(body, m.AnnounceOrder):
        ahead.orders.add_piece(session, body, time.monotonic())
    else:
        ahead.orders.book.end(session, body.namespace, body.name)
    return m.Done()


def announce_function(session: Session, body: m.AnnounceFunction, fd: int | None) -> m.Message:
    """Returns the reply to `AnnounceFunction`. Owns the descriptor."""
    try:
        if not session.role:
            raise ProtocolError("the first frame of a session must be Hello")
        session.server.service(body.namespace)
        session.server.ahead.orders.put_function(session, body, fd, time.monotonic())
    except CacheFSError as err:
        close_descriptor(fd)
        return m.failure_of(err)
    return m.Done()


def close_descriptor(fd: int | None) -> None:
    """Closes a received descriptor that has no use."""
    if fd is not None:
        os.close(fd)
