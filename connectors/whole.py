"""Bodies that need no request of their own: all of one in a buffer, and the empty one."""

from __future__ import annotations

from collections.abc import Iterator

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


class EmptyBody:
    """No bytes, as was asked for."""

    def __iter__(self) -> Iterator[memoryview]:
        return iter(())

    def close(self) -> None:
        """Nothing is open."""
