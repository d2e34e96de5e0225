"""Resolves a path of the command line to a path below a mount, or one in a cluster's namespace."""

from __future__ import annotations

import os
from typing import NamedTuple

from cachefs.cli import clusters
from cachefs.cli.mounts import locate
from cachefs.cli.owners import check_master
from cachefs.cli.session import Target, find_target
from cachefs.cli.settings import state_home
from cachefs.core.addresses import is_cluster, master_url, parse_cluster
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig, Unsupported
from cachefs.core.mountinfo import Mounts, read_mounts


class InCluster(NamedTuple):
    """A path of a cluster's namespace: the URL of the master, the path below the root, and the
    settings by which the master is reached."""

    url: str
    path: bytes
    chosen: Config


def find(path: str, chosen: Config, mounts: Mounts | None = None) -> Target | InCluster:
    """Resolves `cachefs://MASTER/p`, a path below a mount, or the URL of a mounted source. A `/p`
    outside of all mounts is a path of the configured cluster. Raises NotFound, BadConfig."""
    if is_cluster(path):
        return InCluster(_master(path, chosen), os.fsencode(parse_cluster(path).path), chosen)
    if path.startswith("/") and clusters.is_cluster_configured(chosen):
        mounts = read_mounts() if mounts is None else mounts
        if locate(path, mounts).mount is None:
            return _of_configured(path, chosen)
    return find_target(path, state_home(chosen), mounts)


def find_in_cluster(path: str, chosen: Config) -> InCluster:
    """Resolves a path for a command that only clusters support. A path outside of mounts is one of
    the configured master, or of the default one. Raises Unsupported for a mount without a cluster,
    NotFound, BadConfig."""
    if "://" not in path and locate(path, read_mounts()).mount is None:
        return _of_configured(path, chosen)
    found = in_cluster(find(path, chosen), chosen)
    if found is None:
        raise Unsupported("this mount does not belong to a cluster", path=path)
    return found


def in_cluster(place: Target | InCluster, chosen: Config) -> InCluster | None:
    """Returns a path as one of its cluster's namespace; None for a mount without a cluster. Raises
    as `check_master`."""
    if isinstance(place, InCluster):
        return place
    url = place.record.source.url
    if not is_cluster(url):
        return None
    check_master(place.record, chosen)
    chosen = clusters.of_mount(place.record, chosen)
    return InCluster(_master(url, chosen), place.in_namespace, chosen)


def _of_configured(path: str, chosen: Config) -> InCluster:
    """Returns a path `/p` as one of the configured cluster. Raises BadConfig."""
    url = clusters.master_of(chosen)
    return InCluster(url, namespace_path(path).strip(b"/"), chosen)


def namespace_path(path: str) -> bytes:
    """Returns a path as an absolute path of the namespace. Raises BadConfig."""
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or {".", ".."} & set(parts) or "\0" in path:
        raise BadConfig(f"not a path of the namespace: {path!r}", remedy="start it with '/'")
    return os.fsencode("/" + "/".join(parts))


def _master(url: str, chosen: Config) -> str:
    """Returns the URL of the master of a path `cachefs://…`; --master takes precedence."""
    return master_url(chosen.text("master") or url, tls=clusters.uses_tls(chosen))
