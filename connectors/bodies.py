"""Helpers for bodies: the bytes of a whole body, and an empty body."""

from __future__ import annotations

from collections.abc import Iterator

from connectors.base import Body


def read_whole_body(body: Body) -> memoryview:
    """Returns all bytes of a body and closes it. Raises the errors of its iteration."""
    data = bytearray()
    try:
        for chunk in body:
            data += chunk
    finally:
        body.close()
    return memoryview(data)


class EmptyBody:
    """The body of a read of 0 bytes."""

    def __iter__(self) -> Iterator[memoryview]:
        return iter(())

    def close(self) -> None:
        """Closes nothing."""
