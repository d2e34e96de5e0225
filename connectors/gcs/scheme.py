"""The scheme `gs://`: its options, and the construction of its connector."""

from __future__ import annotations

from collections.abc import Mapping

from connectors.base import Connector
from connectors.fetch.request import OnConnected
from connectors.gcs.options import OPTIONS, normalise, parse_options

__all__ = ["OPTIONS", "normalise", "open_connector", "parse_options"]


def open_connector(url: str, options: Mapping[str, str], tell_made: OnConnected) -> Connector:
    """Returns the connector of a normalised URL, which sends nothing yet."""
    from connectors.gcs.store import GcsStore
    from connectors.objects.connector import ObjectConnector

    bucket, _, prefix = url.removeprefix("gs://").partition("/")
    return ObjectConnector(GcsStore(bucket, parse_options(options)), prefix, tell_made)
