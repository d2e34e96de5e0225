"""`connectors.fetch.batch_reader.BatchReader` in a thread of its own."""

from __future__ import annotations

from connectors.fetch.batch_reader import LIMIT_S, BatchReader, OnReadEnded
from connectors.fetch.request import HttpRequest, NewConnections
from tests.services.request_thread import RequestThread


class ManyThread(RequestThread):
    """See `RequestThread`."""

    def __init__(self) -> None:
        self.many = BatchReader()
        super().__init__("many")

    def start(self, request: HttpRequest, taken: OnReadEnded) -> bool:
        """Returns False, and calls nothing, once this has ended. `taken` may use the body until it
        returns."""

        def took(body: memoryview | None, size: int, code: str, made: NewConnections) -> None:
            taken(body, size, code, made)
            if body is not None:
                self.many.give_back(body)

        return self._submit(request, took)

    def _wake(self) -> None:
        self.many._multi.wake()

    def _begin(self, request: HttpRequest, took: OnReadEnded) -> None:
        self.many.start(request, took)

    def _turn(self) -> None:
        self.many.turn(LIMIT_S)

    def _end(self) -> None:
        self.many.close()
