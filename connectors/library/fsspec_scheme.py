"""The schemes `fsspec+PROTO://`: the construction of their connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from connectors.base import Capabilities, Connector
from connectors.library.options import FIXED, check_options, normalise

__all__ = ["check_options", "normalise", "open_connector"]

# Their facts hold an etag or a generation.
_WITH_VERSIONS: Final = frozenset({"abfs", "az", "gcs", "gs", "s3", "s3a"})


def open_connector(url: str, options: Mapping[str, str]) -> Connector:
    """Returns the connector of a normalised URL, which connects at the first call."""
    from connectors.library.connector import LibraryConnector
    from connectors.library.fsspec_tree import FsspecTree
    from connectors.library.tree import VersionRule

    inner = url.partition("+")[2]
    capabilities = Capabilities(
        ordered_listings=False,
        etags=inner.partition("://")[0] in _WITH_VERSIONS,
        directories=True,
        posix=False,
        mtime_precision_ns=10**3,
    )
    rule = VersionRule(is_fixed=options.get(FIXED) == "true")
    return LibraryConnector(FsspecTree(inner, options), rule, capabilities)
