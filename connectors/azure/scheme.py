"""The scheme `az://`: its options, and the construction of its connector."""

from __future__ import annotations

from collections.abc import Mapping

from connectors.azure.options import OPTIONS, normalise, parse_options, place
from connectors.base import Connector
from connectors.fetch.request import OnConnected

__all__ = ["OPTIONS", "normalise", "open_connector", "parse_options"]


def open_connector(url: str, options: Mapping[str, str], tell_made: OnConnected) -> Connector:
    """Returns the connector of a normalised URL, which sends nothing yet."""
    from connectors.azure.store import AzureStore
    from connectors.objects.connector import ObjectConnector

    where = place(url)
    return ObjectConnector(AzureStore(where, parse_options(options)), where.prefix, tell_made)
