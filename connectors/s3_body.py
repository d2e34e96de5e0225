"""The body of a ranged GET: counted, so that a short, long or cut one is an error, never bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from obstore.exceptions import BaseError

from cachefs.core.errors import BadBody
from connectors.s3_errors import from_obstore
from connectors.s3_http import Reply

CHUNK_BYTES: Final = 1 << 20


class EmptyBody:
    """No bytes, as was asked for."""

    def __iter__(self) -> Iterator[memoryview]:
        return iter(())

    def close(self) -> None:
        pass


class CountedBody:
    """Exactly `size` bytes of a source of chunks, or BadBody after the right ones. Closing drops
    the source, which cancels the request; a thread that waits in it sees the end."""

    def __init__(self, chunks: Iterator[Any], size: int, path: str) -> None:
        self._chunks: Iterator[Any] | None = chunks
        self._left = size
        self._path = path

    def __iter__(self) -> Iterator[memoryview]:
        while self._left:
            chunks = self._chunks
            if chunks is None:
                return
            chunk = memoryview(self._next(chunks))
            if len(chunk) > self._left:
                yield chunk[: self._left]
                raise self._bad("the body is longer than was asked for")
            self._left -= len(chunk)
            yield chunk
        self.close()

    def _next(self, chunks: Iterator[Any]) -> Any:
        try:
            return next(chunks)
        except StopIteration:
            raise self._bad(f"the body ended {self._left} bytes early") from None
        except (BaseError, OSError) as error:
            raise from_obstore(error, self._path) from error

    def _bad(self, cause: str) -> BadBody:
        self.close()
        return BadBody(cause, path=self._path)

    def close(self) -> None:
        self._chunks = None


def _ended(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Gives the piece with the last byte, of `size`, when the end of the body is here too; what
    comes in place of the end is given with it."""
    for piece in pieces:
        size -= len(piece)
        yield piece if size > 0 else piece + next(pieces, b"")


class HttpBody(CountedBody):
    """The same over a plain reply, for the keys and replies that obstore refuses. A chunked reply
    must end with its last byte: nothing but its end says how long it is."""

    def __init__(self, reply: Reply, size: int, path: str) -> None:
        super().__init__(_ended(reply.pieces(CHUNK_BYTES), size), size, path)
        self._reply = reply

    def close(self) -> None:
        super().close()
        self._reply.close()
