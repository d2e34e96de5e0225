"""The scheme `hdfs://`: a directory of an HDFS, by its NameNode or its name service."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from connectors import keys
from connectors.base import Connector
from connectors.hdfs.options import OPTIONS, parse_options
from connectors.meter import Meter
from connectors.scheme import Scheme

_AUTHORITY: Final = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?")
_LAST_PORT: Final = 65535


class HdfsLocation(NamedTuple):
    authority: str  # host:port, a name service, or a host
    root: str  # an absolute path; "" is the root of HDFS


def parse_location(rest: str) -> HdfsLocation:
    """Returns the parts of a URL, of which `rest` follows the scheme. Raises BadConfig."""
    authority, _, path = rest.partition("/")
    port = authority.partition(":")[2]
    if not _AUTHORITY.fullmatch(authority) or not 0 < int(port or 1) <= _LAST_PORT:
        raise BadConfig(
            f"bad NameNode {authority!r} in 'hdfs://{rest}'",
            remedy="write hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH with a conf_dir",
        )
    path = path.rstrip("/")
    if ":" in path or not keys.visible_path(path.encode("utf-8", "surrogateescape")):
        remedy = "no ':', and no empty, '.' or '..' segments"
        raise BadConfig(f"bad path {path!r} in 'hdfs://{rest}'", remedy=remedy)
    return HdfsLocation(authority, f"/{path}" if path else "")


class HdfsScheme(Scheme):
    """`hdfs://authority/path`. Nothing is percent-decoded."""

    options = OPTIONS
    extra = "hdfs"
    libraries = ("hdfs_native",)

    def normalise(self, scheme: str, rest: str) -> str:
        authority, root = parse_location(rest)
        return f"hdfs://{authority}{root}"

    def check_options(self, spec: UfsSpec) -> None:
        super().check_options(spec)
        parse_options(spec.options)

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from connectors.hdfs.connector import HdfsConnector

        location = parse_location(spec.url.removeprefix("hdfs://"))
        return HdfsConnector(*location, parse_options(spec.options))


SCHEME: Final = HdfsScheme()
