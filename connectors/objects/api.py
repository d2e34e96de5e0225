"""The interface of `connectors.objects.connector` to one object store: its requests, its replies
and its access."""

from __future__ import annotations

from typing import Protocol

from cachefs.core.errors import CacheFSError
from cachefs.core.model import Fingerprint
from connectors.capabilities import Capabilities
from connectors.fetch.request import Head, HttpRequest
from connectors.objects.keyed import KeyedApi
from connectors.s3.listing import Listing


class ObjectApi(KeyedApi, Protocol):
    """The requests of an `ObjectConnector`."""

    def stat(self, key: str) -> HttpRequest:
        """Returns the request for the metadata of an object."""


class ObjectStore(Protocol):
    """One container of a store. Thread-safe."""

    @property
    def where(self) -> str:
        """The URL of the container, without a trailing '/'."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def marks_directories(self) -> bool:
        """True if an empty object may be the mark of a directory: `parse_stat` decides."""

    @property
    def version_header(self) -> str:
        """The header of a reply that holds the `Fingerprint.etag`; in lower case."""

    def api(self) -> ObjectApi:
        """Returns a builder of requests, valid as long as the credentials are. May block for new
        credentials. Raises CredentialsMissing, Unreachable."""

    def forget(self) -> None:
        """Discards the credentials, after the store refused them."""

    def can_be_key(self, key: str) -> bool:
        """Returns False if no object has this key."""

    def parse_listing(self, body: bytes) -> Listing:
        """Raises BadBody for an incomplete reply, OriginError if it is no listing."""

    def parse_stat(self, head: Head, body: bytes) -> Fingerprint | None:
        """Returns the fingerprint of an object; None if its size is one that no file can have.
        Raises BadBody for an incomplete reply."""

    def classify(self, head: Head, body: bytes) -> CacheFSError:
        """Returns the typed error of a reply that is not 2xx."""

    def no_container(self) -> CacheFSError:
        """Returns the error of a listing that the store answered with 404."""
