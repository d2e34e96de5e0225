"""The schemes `arrow+PROTO://`: the construction of their connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from connectors.base import Capabilities, Connector
from connectors.library.options import FIXED, check_options, normalise

__all__ = ["check_options", "normalise", "open_connector"]

_CAPABILITIES: Final = Capabilities(
    ordered_listings=False,
    etags=False,
    directories=True,
    posix=False,
    mtime_precision_ns=1,
)


def open_connector(url: str, options: Mapping[str, str]) -> Connector:
    """Returns the connector of a normalised URL, which connects at the first call."""
    from connectors.library.arrow_tree import ArrowTree
    from connectors.library.connector import LibraryConnector
    from connectors.library.tree import VersionRule

    rule = VersionRule(is_fixed=options.get(FIXED) == "true")
    tree = ArrowTree(url.partition("+")[2], options)
    return LibraryConnector(tree, rule, _CAPABILITIES)
