"""The sender of requests to one object store. No retries; every error is a typed one."""

from __future__ import annotations

from cachefs.core.errors import CacheFSError, CredentialsMissing
from connectors.fetch.connection_pool import FetchBody
from connectors.fetch.request import OnConnected
from connectors.fetch.sender import Sender
from connectors.objects.api import ObjectStore


class ObjectHttp(Sender):
    """The connections of one source, and the classification of refusals. Thread-safe."""

    def __init__(self, store: ObjectStore, tell_made: OnConnected) -> None:
        super().__init__(tell_made)
        self._store = store

    def _refusal(self, reply: FetchBody, path: str) -> CacheFSError:
        error = self._store.classify(reply.head, reply.refusal)
        error.path = path
        if isinstance(error, CredentialsMissing):
            self._store.forget()
        return error
