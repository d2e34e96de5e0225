"""Sends the requests of one source, and refuses replies that are not 2xx. No retries."""

from __future__ import annotations

from abc import ABC, abstractmethod

from cachefs.core.errors import CacheFSError
from connectors.fetch.connection_pool import ConnectionPool, FetchBody
from connectors.fetch.request import HttpRequest, OnConnected
from connectors.fetch.sent_request import SentRequest


class Sender(ABC):
    """The connections of one source. Thread-safe. Each kind of store classifies its refusals."""

    def __init__(self, tell_made: OnConnected) -> None:
        self._lanes = ConnectionPool(tell_made)

    def send(self, request: HttpRequest, path: str) -> FetchBody:
        """Returns the reply to a request, which the caller reads or closes. Raises a typed error
        for a reply that is not 2xx."""
        return self._accepted(self._lanes.get(request, path), path)

    def send_ahead(self, request: HttpRequest, path: str) -> SentRequest | None:
        """Sends a request and waits for nothing; None if that is not possible at once."""
        return self._lanes.send(request, path)

    def receive(self, sent: SentRequest) -> FetchBody:
        """Returns the reply to a request of `send_ahead` as `send` does."""
        return self._accepted(self._lanes.receive(sent), sent.path)

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._lanes.close()

    def _accepted(self, reply: FetchBody, path: str) -> FetchBody:
        if not reply.head.is_success:
            reply.close()
            raise self._refusal(reply, path)
        return reply

    @abstractmethod
    def _refusal(self, reply: FetchBody, path: str) -> CacheFSError:
        """Returns the error of a reply. Discards refused credentials, so that the next request
        looks for new ones."""
