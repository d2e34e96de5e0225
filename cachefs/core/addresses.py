"""The addresses of mounts, `cachefs://HOST:PORT/path`, and processes, `http(s)://HOST:PORT`.
Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cachefs.core.access import join_address, parse_address
from cachefs.core.cluster import DEFAULT_PORT
from cachefs.core.errors import BadConfig

SCHEME: Final = "cachefs://"
ALIVE_PATH: Final = "/healthz"  # GET answers 200 while the process's event loop runs; no token
DEFAULT_MASTER: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
MAY_SPEAK_TLS: Final = "see its log; if it speaks TLS, give --tls-ca FILE or --tls"  # a remedy
_HTTP: Final = re.compile(r"(https?)://([^/]*)/?")


class ClusterPath(NamedTuple):
    """A master's address, and a path below its namespace root, without slashes at its ends."""

    address: str  # HOST:PORT
    path: str

    @property
    def url(self) -> str:
        """The canonical URL."""
        return f"{SCHEME}{self.address}/{self.path}".rstrip("/")


def is_cluster(url: str) -> bool:
    """Returns whether a URL names a path of a cluster (and not a source)."""
    return url.lower().startswith(SCHEME)


def parse_cluster(url: str) -> ClusterPath:
    """Returns the parsed `cachefs://HOST[:PORT][/path]`. Raises BadConfig for anything else."""
    address, _, path = url[len(SCHEME) :].partition("/")
    host, port = parse_address(address, DEFAULT_PORT) if address else ("", 0)
    if not is_cluster(url) or not host or not port:
        raise BadConfig(f"not a cluster's path: {url!r}", remedy=f"write {SCHEME}HOST:PORT/path")
    parts = [part for part in path.split("/") if part]
    if {".", ".."} & set(parts) or "\0" in path:
        raise BadConfig(f"bad path in {url!r}", remedy="no '.' or '..' segments")
    return ClusterPath(join_address(host, port), "/".join(parts))


def namespace_base(url: str) -> bytes:
    """Returns the directory of its namespace that a mount of a source shows: b"", but for a mount
    of a cluster's subdirectory. Raises BadConfig."""
    return parse_cluster(url).path.encode(errors="surrogateescape") if is_cluster(url) else b""


def master_url(text: str, *, tls: bool) -> str:
    """Returns the URL of a master given as HOST, HOST:PORT, `cachefs://…` or a URL. `tls` selects
    https if the text has no http(s) scheme. Raises BadConfig."""
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
    """Returns HOST:PORT of a process's URL. Raises BadConfig."""
    match = _HTTP.fullmatch(url)
    if match is None:
        raise BadConfig(f"not a URL of a process: {url!r}")
    return join_address(*parse_address(match[2], DEFAULT_PORT))
