"""The URL of an `hdfs://` source: NameNode or name service, and directory. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cachefs.core.errors import BadConfig
from connectors import keys

_AUTHORITY: Final = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?")
_LAST_PORT: Final = 65535


class HdfsLocation(NamedTuple):
    authority: str  # host:port, a name service or a host
    root: str  # an absolute path; "" is the root of HDFS


def parse_url(url: str) -> HdfsLocation:
    """Returns the parts of a URL. Raises BadConfig."""
    authority, _, path = url.partition("://")[2].partition("/")
    port = authority.partition(":")[2]
    if not _AUTHORITY.fullmatch(authority) or not 0 < int(port or 1) <= _LAST_PORT:
        raise BadConfig(
            f"bad NameNode {authority!r} in {url!r}",
            remedy="write hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH with a conf_dir",
        )
    path = path.rstrip("/")
    if ":" in path or not keys.visible_path(path.encode("utf-8", "surrogateescape")):
        raise BadConfig(f"bad path {path!r} in {url!r}", remedy="no empty, '.' or '..' segments")
    return HdfsLocation(authority, f"/{path}" if path else "")


def normalise(url: str) -> str:
    """Returns the normal form: `hdfs://authority/path`, no trailing '/'. Raises BadConfig."""
    authority, root = parse_url(url)
    return f"hdfs://{authority}{root}"
