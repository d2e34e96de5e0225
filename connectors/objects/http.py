"""The sender of requests to one object store. No retries; every error is a typed one."""

from __future__ import annotations

from cachefs.core.errors import CacheFSError, CredentialsMissing
from connectors.fetch.connection_pool import ConnectionPool, FetchBody
from connectors.fetch.request import HttpRequest, OnConnected
from connectors.fetch.sent_request import SentRequest
from connectors.objects.api import ObjectStore


class ObjectHttp:
    """The connections of one source, and the classification of refusals. Thread-safe."""

    def __init__(self, store: ObjectStore, tell_made: OnConnected) -> None:
        self._store = store
        self._lanes = ConnectionPool(tell_made)

    def send(self, request: HttpRequest, path: str) -> FetchBody:
        """Returns the reply to a request, which the caller reads or closes. Raises a typed error
        for a reply that is not 2xx."""
        return self._accepted(self._lanes.get(request, path), path)

    def send_ahead(self, request: HttpRequest, path: str) -> SentRequest | None:
        """See `connectors.page_replies`."""
        return self._lanes.send(request, path)

    def receive(self, sent: SentRequest) -> FetchBody:
        """Returns the reply to a request of `send_ahead` as `send` does."""
        return self._accepted(self._lanes.receive(sent), sent.path)

    def _accepted(self, reply: FetchBody, path: str) -> FetchBody:
        if not reply.head.is_success:
            reply.close()
            raise self._refusal(reply, path)
        return reply

    def _refusal(self, reply: FetchBody, path: str) -> CacheFSError:
        """Returns the error of a reply. Discards refused credentials, so that the next request
        looks for new ones."""
        error = self._store.classify(reply.head, reply.refusal)
        error.path = path
        if isinstance(error, CredentialsMissing):
            self._store.forget()
        return error

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._lanes.close()
