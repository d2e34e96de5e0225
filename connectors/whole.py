"""A whole file as one buffer, for connectors that have no shorter way than their `read`."""

from __future__ import annotations

from connectors.base import Body


def joined(body: Body) -> memoryview:
    """All bytes of a body, which is closed. Raises what its iteration raises."""
    data = bytearray()
    try:
        for chunk in body:
            data += chunk
    finally:
        body.close()
    return memoryview(data)
