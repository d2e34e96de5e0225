"""Finds what a path or URL means: a source, how its server is reached, and the path in the source.

    /mnt/x/path                cachefs:///mnt/x/path: on a mount
    cachefs://HOST:PORT/path   a path of a cluster
    cachefs+s3://bucket/path   a source of any scheme

A URL of a source or a cluster that is mounted here is read by the mount's server. For others the
library finds or starts a server with the settings of `cachefs mount`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cachefs.cli.mounts import locate
from cachefs.cli.owners import find_record_and_home
from cachefs.core.addresses import SCHEME, is_cluster, parse_cluster
from cachefs.core.errors import (
    BadConfig,
    CacheFSError,
    DeadlineExceeded,
    NotFound,
    Unreachable,
    lacks_descriptors,
)
from cachefs.core.messages import Attach
from cachefs.core.model import UfsSpec
from cachefs.core.mountinfo import Mount, Mounts
from cachefs.launcher.state import StateHome
from cachefs.library.dialers import HANG_LIMIT_S, MountDialer, ServerDialer
from cachefs.library.mount_table import MountTable

if TYPE_CHECKING:
    from cachefs.core.config import Config
    from cachefs.core.specs import WorkerSpec

SOURCE_SCHEME: Final = "cachefs+"
_LOST_SLASH: Final = re.compile(r"cachefs(\+[a-z0-9+]+)?:/?(?!/)")
_STORES: Final = frozenset(("s3", "gs", "az", "hdfs", "file"))
MASTER_REMEDY: Final = "check the host and the port, and that `cachefs master` runs there"

Dialing = MountDialer | ServerDialer
Settings = Mapping[str, Any]


class Place(NamedTuple):
    """A path in a source."""

    dialer: Dialing
    path: bytes


class Places:
    """Places by URL, for one process. `mounts`: the table that decides which paths are mounts."""

    def __init__(self, mounts: MountTable) -> None:
        self._mounts = mounts
        self._of = Mounts(())
        self._former: dict[Mount, MountDialer] = {}  # of mounts that are as in an earlier snapshot
        # Of this snapshot of the mounts:
        self._dialers: dict[Mount, MountDialer] = {}
        self._bases: list[_Base] = []  # of URLs

    def find(self, url: str, settings: Settings) -> Place:
        """Returns the place of a path or URL. Raises NotFound, BadConfig, AccessDenied."""
        mounts = self._mounts.current()
        if mounts is not self._of:
            known = {**self._former, **self._dialers}
            self._former = {one: known[one] for one in known if mounts.at(one.mountpoint) == one}
            self._of, self._dialers, self._bases = mounts, {}, []
        if url.startswith(SCHEME + "/"):
            url = url[len(SCHEME) :]
        if _LOST_SLASH.match(url):
            cause = f"not a URL, a slash is missing: {url!r}"
            raise BadConfig(cause, remedy="write ://, in a str: a pathlib.Path drops one slash")
        if "://" not in url:
            return self._on_mount(url, mounts, settings)
        if not is_cluster(url) and not url.startswith(SOURCE_SCHEME):
            raise BadConfig(f"not a URL of CacheFS: {url!r}", remedy=_remedy_for(url))
        return self._at_url(url, settings)

    # ---- paths on mounts ----

    def _on_mount(self, path: str, mounts: Mounts, settings: Settings) -> Place:
        is_plain = path.startswith("/") and "/.." not in path
        mount = mounts.containing(path) if is_plain else None
        if mount is not None and mount.is_cachefs:
            inside = mount.root + path[len(mount.mountpoint) :]
        else:  # links may lead to a mount
            found = locate(path, mounts)
            if found.mount is None:
                remedy = "`cachefs status` lists the mounts"
                raise NotFound("not under a CacheFS mount", path=path, remedy=remedy)
            mount, inside = found.mount, found.inside
        return Place(self._dialer(mount, mounts, settings), os.fsencode(inside))

    def _dialer(self, mount: Mount, mounts: Mounts, settings: Settings) -> MountDialer:
        dialer = self._dialers.get(mount)
        if dialer is None:
            try:
                dialer = _recorded(mount, mounts, settings)
            except (OSError, CacheFSError) as err:
                if mount in self._former and _lacks_descriptors(err):
                    return self._former[mount]  # the record is read again by the next call
                raise
            self._dialers[mount] = dialer
        return dialer

    # ---- URLs ----

    def _at_url(self, url: str, settings: Settings) -> Place:
        """Returns the place of a URL: in a source that was found before, in one that a mount has,
        else in a separate one."""
        url = parse_cluster(url).url if is_cluster(url) else url[len(SOURCE_SCHEME) :]
        base = next((one for one in self._bases if one.has(url, settings)), None)
        if base is None:
            dialer = self._mounted(url, settings)
            base = _Base(dict(settings), dialer or _dialer_of(url, settings))
            if not is_below(url, base.url):
                raise BadConfig(f"{url} is not below the source {base.url}")
            self._bases.append(base)
        return Place(base.dialer, os.fsencode(url[len(base.url) :]))

    def _mounted(self, url: str, settings: Settings) -> MountDialer | None:
        """Returns the mount of a source; None without one, or with settings: they may mean another
        origin."""
        if set(settings) - {"home"}:
            return None
        home = state_home(settings)
        for record in home.mount_records():
            base = record.source.url
            if is_below(url, base) and record.is_served():
                return MountDialer(home, record)
        return None


def _recorded(mount: Mount, mounts: Mounts, settings: Settings) -> MountDialer:
    """Returns the dialer of a mount, as its record has it now. Raises NotFound without one."""
    found = find_record_and_home(mounts.original(mount), state_home(settings))
    if found is None:
        raise NotFound(
            "no record of this mount in the state home",
            path=mount.mountpoint,
            remedy="run this as the user who mounted it, or open the path itself",
        )
    return MountDialer(found.home, found.record)


def _lacks_descriptors(error: Exception) -> bool:
    cause = error.__cause__  # of a typed error
    return lacks_descriptors(error) or (cause is not None and lacks_descriptors(cause))


def _remedy_for(url: str) -> str:
    """Returns what to write in place of a URL without our scheme."""
    if url.partition("://")[0] in _STORES:
        return f"write {SOURCE_SCHEME}{url}"
    return f"write {SOURCE_SCHEME}s3://BUCKET/path, cachefs://HOST:PORT/path or a path on a mount"


class _Base(NamedTuple):
    """A source that was found for a URL, with the settings that were given."""

    settings: Settings
    dialer: Dialing

    @property
    def url(self) -> str:
        return self.dialer.attach.source.url.rstrip("/")

    def has(self, url: str, settings: Settings) -> bool:
        return self.settings == settings and is_below(url, self.url)


_ROOTS: Final = {
    "s3": "name a bucket: cachefs+s3://BUCKET/path",
    "gs": "name a bucket: cachefs+gs://BUCKET/path",
    "az": "name an account and a container: cachefs+az://ACCOUNT/CONTAINER/path",
}


def is_below(url: str, base: str) -> bool:
    """Returns whether a URL is a source or below it."""
    base = base.rstrip("/")
    return url.rstrip("/") == base or url.startswith(base + "/")


def root_of(url: str) -> str:
    """Returns the whole bucket, container or name service of a URL. Raises BadConfig for a URL
    without one."""
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    if scheme == "az":  # the container belongs to the authority
        authority = f"{authority}/{path.partition('/')[0]}"
    if not authority:
        remedy = _ROOTS.get(scheme, f'give source="{scheme}:///directory"')
        raise BadConfig(f"{SOURCE_SCHEME}{url} does not say where its source begins", remedy=remedy)
    return f"{scheme}://{authority}"


# ---- settings and servers: imported only without a mount -----------------------------------------


def load_settings(settings: Settings) -> Config:
    """Returns all settings: the given ones over environment and files. Raises BadConfig."""
    from cachefs.cli import settings as loader
    from cachefs.core.config import find_setting

    given = {name: value for name, value in settings.items() if name not in ("source", "config")}
    flags = {find_setting(name, "argument").name: value for name, value in given.items()}
    return loader.load_settings(flags, settings.get("config"))


def state_home(settings: Settings) -> StateHome:
    """Returns the state home of the settings, and without reading files where one is given."""
    if settings.get("home"):
        return StateHome(os.path.abspath(settings["home"]))
    from cachefs.cli import settings as loader

    return loader.state_home(load_settings(settings))


def _dialer_of(url: str, settings: Settings) -> ServerDialer:
    """Returns how a server of the URL's own is reached."""
    chosen = load_settings(settings)
    if is_cluster(url):
        return _node_of(f"{SCHEME}{parse_cluster(url).address}", chosen)
    return _server_of(str(settings.get("source") or root_of(url)), chosen)


def _server_of(source: str, chosen: Config) -> ServerDialer:
    from cachefs.cli import settings as loader
    from cachefs.cli.server_plans import server_spec, source_spec
    from cachefs.launcher.processes import ensure_server

    spec = source_spec(source, chosen)
    home = loader.state_home(chosen)
    server = server_spec(spec, str(home.path), chosen, foreground=False)
    return ServerDialer(
        f"server {home.path} {spec.key} {server.cache_dir}",
        _attach(spec, chosen),
        lambda: ensure_server(server, hang_limit_s=HANG_LIMIT_S),
    )


def _node_of(url: str, chosen: Config) -> ServerDialer:
    from cachefs.cli import clusters
    from cachefs.cli import settings as loader
    from cachefs.launcher.cluster import ensure_node

    spec = clusters.source_spec(url, chosen)
    home = loader.state_home(chosen)
    node = clusters.mounts_node(spec.url, home, chosen, foreground=False)
    return ServerDialer(
        f"node {home.path} {spec.key}",
        _attach(spec, chosen),
        lambda: ensure_node(node, hang_limit_s=HANG_LIMIT_S),
        lambda: _check_master(node),
    )


def _check_master(node: WorkerSpec) -> None:
    """Checks that the master answers, unless a worker of this machine does. Raises Unreachable and
    DeadlineExceeded with the address of the master, and AccessDenied."""
    from cachefs.cli import clusters

    try:
        clusters.check_master(node)
    except (Unreachable, DeadlineExceeded) as err:
        cause = f"{err.cause} ({err.path})" if err.path else err.cause
        raise type(err)(cause, remedy=MASTER_REMEDY) from err


def _attach(spec: UfsSpec, chosen: Config) -> Attach:
    return Attach(spec, chosen.seconds("sync_interval"))
