"""How a cluster is named: `cachefs://HOST:PORT/path` of a mount, `http(s)://HOST:PORT` of a
process. Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cachefs.core.access import join_address, parse_address
from cachefs.core.cluster import DEFAULT_PORT
from cachefs.core.errors import BadConfig

SCHEME: Final = "cachefs://"
ALIVE_PATH: Final = "/healthz"  # of a process: GET, 200 while its event loop turns; no token
DEFAULT_MASTER: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
_HTTP: Final = re.compile(r"(https?)://([^/]*)/?")


class ClusterPath(NamedTuple):
    """A directory of a cluster's namespace: its master's address, and the path below the root,
    without slashes at its ends."""

    address: str  # HOST:PORT
    path: str

    @property
    def url(self) -> str:
        """The one way to write it."""
        return f"{SCHEME}{self.address}/{self.path}".rstrip("/")


def is_cluster(url: str) -> bool:
    """Does this name a path of a cluster (and not a source)?"""
    return url.lower().startswith(SCHEME)


def parse_cluster(url: str) -> ClusterPath:
    """Raises BadConfig for what is not `cachefs://HOST[:PORT][/path]`."""
    address, _, path = url[len(SCHEME) :].partition("/")
    host, port = parse_address(address, DEFAULT_PORT) if address else ("", 0)
    if not is_cluster(url) or not host or not port:
        raise BadConfig(f"not a cluster's path: {url!r}", remedy=f"write {SCHEME}HOST:PORT/path")
    parts = [part for part in path.split("/") if part]
    if {".", ".."} & set(parts) or "\0" in path:
        raise BadConfig(f"bad path in {url!r}", remedy="no '.' or '..' segments")
    return ClusterPath(join_address(host, port), "/".join(parts))


def master_url(text: str, *, tls: bool) -> str:
    """The URL of a master that was given as HOST, HOST:PORT, `cachefs://…` or a URL. `tls`: where
    no scheme says it. Raises BadConfig."""
    match = _HTTP.fullmatch(text)
    if is_cluster(text):
        address, scheme = parse_cluster(text).address, ""
    elif match is not None:
        address, scheme = match[2], match[1]
    else:
        address, scheme = text, ""
    host, port = parse_address(address, DEFAULT_PORT)
    if not host or not port:
        raise BadConfig(f"not a master: {text!r}", remedy="write it as HOST:PORT")
    return f"{scheme or ('https' if tls else 'http')}://{join_address(host, port)}"


def address_of(url: str) -> str:
    """HOST:PORT of a process's URL. Raises BadConfig."""
    match = _HTTP.fullmatch(url)
    if match is None:
        raise BadConfig(f"not a URL of a process: {url!r}")
    return join_address(*parse_address(match[2], DEFAULT_PORT))
