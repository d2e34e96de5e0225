"""Frames that arrived without their descriptor, because this process may open no more files. Pure.

Such a reply is an error of its request alone: the connection, and every other request, go on.
"""

from __future__ import annotations

from typing import Final

from cachefs.core import messages as m
from cachefs.core.errors import NoDescriptorLeft

CAUSE: Final = "this process has as many files open as its limit allows"
REMEDY: Final = "close files that are not read, or raise the limit (`ulimit -n`)"


def no_descriptor_left() -> NoDescriptorLeft:
    """Returns the error of a request whose reply lost its descriptor."""
    return NoDescriptorLeft(CAUSE, remedy=REMEDY)


def without_descriptor(data: bytes) -> tuple[m.Frame, m.Release | None]:
    """Returns the frame to handle in place of one: of a reply a Failure, of an event the event.
    Also returns what ends the open that a reply reported. Raises ProtocolError."""
    frame = m.decode(data)
    if not frame.id:
        return frame, None
    body = frame.body
    release = m.Release(body.handle) if isinstance(body, m.Opened) and body.handle else None
    return m.Frame(frame.id, m.failure_of(no_descriptor_left())), release
