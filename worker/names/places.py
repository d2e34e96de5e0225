"""Where the bytes of a file are, in a master's words. Pure."""

from __future__ import annotations

from cachefs.core.cluster import Place
from cachefs.core.errors import CacheFSError, ProtocolError
from cachefs.core.messages import error_of
from cachefs.core.model import Origin


def origin_of(place: Place) -> Origin | CacheFSError:
    """Returns the origin, or the failure instead of it."""
    if place.origin is not None:
        return place.origin
    if place.failure is not None:
        return error_of(place.failure)
    return ProtocolError("the master's reply has neither an origin nor a failure")
