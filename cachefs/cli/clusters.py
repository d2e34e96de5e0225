"""From settings to a cluster: its master, how to prove oneself there, the node of a mount."""

from __future__ import annotations

import os
from typing import Any, Final

import cachefs
from cachefs.client.admin import AdminClient
from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core.addresses import DEFAULT_MASTER, address_of, master_url, parse_cluster
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from cachefs.core.specs import Security, WorkerSpec
from cachefs.launcher import local
from cachefs.launcher.cluster import MOUNTS_NODE, find_node, tier_of
from cachefs.launcher.state import CACHE_NAME, StateHome

AUTO: Final = "auto"
MASTER_S: Final = 10.0


def security(chosen: Config) -> Security:
    """The files of the settings."""
    return Security(*(chosen.text(n) for n in ("token_file", "tls_cert", "tls_key", "tls_ca")))


def speaks_tls(chosen: Config) -> bool:
    """With a master that was given without a scheme."""
    return chosen.switch("tls", undecided=bool(chosen.text("tls_ca")))


def master_of(chosen: Config, home: StateHome) -> str:
    """The URL of the master to speak with: the setting, else that of `cachefs up`, else the default
    one of this machine. Raises BadConfig."""
    given = chosen.text("master")
    if given:
        return master_url(given, tls=speaks_tls(chosen))
    cluster = local.read(home)
    return cluster.master if cluster is not None else DEFAULT_MASTER


def connect_admin(chosen: Config, home: StateHome) -> AdminClient:
    """A client of the master's admin API. Raises BadConfig, AccessDenied; asks nothing yet."""
    return AdminClient(master_of(chosen, home), security(chosen))


def admin_of(url: str, chosen: Config) -> tuple[AdminClient, bytes]:
    """A client of the master of a path `cachefs://…` (or of --master, where it is given), and the
    path below the root of its namespace. Else as `connect_admin`."""
    tls = speaks_tls(chosen)
    master = master_url(chosen.text("master") or url, tls=tls)
    return AdminClient(master, security(chosen)), os.fsencode(parse_cluster(url).path)


def connect_worker(url: str, chosen: Config) -> HttpClient:
    """A client of a worker."""
    return HttpClient(url, security(chosen), name=f"the worker at {url}")


# ---- mounts --------------------------------------------------------------------------------------


def source_spec(url: str, chosen: Config) -> UfsSpec:
    """A path of a cluster as a mount's source. Raises BadConfig, also for options of sources."""
    given = chosen.source_options(keep=())
    if given:
        names = ", ".join(sorted(given))
        raise BadConfig(
            f"a path of a cluster has no options of sources, got {names}",
            remedy="give them to `cachefs ufs add`",
        )
    return UfsSpec(parse_cluster(url).url)


def mounts_node(url: str, home: StateHome, chosen: Config, foreground: bool) -> WorkerSpec:
    """The worker that a mount starts where this machine has none: it owns nothing, and ends with
    the last mount."""
    path = parse_cluster(url)
    directory = home.node_dir(path.address, MOUNTS_NODE)
    cache_dir = chosen.text("cache_dir") or str(directory / CACHE_NAME)
    return WorkerSpec(
        home=str(home.path),
        master=master_url(path.address, tls=speaks_tls(chosen)),
        name=MOUNTS_NODE,
        tiers=(tier_of(cache_dir, chosen.integer("cache_size")),),
        weight=0.0,
        stays=False,
        security=security(chosen),
        log_to_stderr=foreground,
        **cache_settings(chosen),
    )


def check_master(node: WorkerSpec) -> None:
    """Before a node is started, which waits for its master: is it there, does it let us in? Raises
    Unreachable, AccessDenied, DeadlineExceeded. One that runs here already may know enough without
    a master."""
    if find_node(StateHome(node.home), address_of(node.master)) is None:
        with HttpClient(node.master, node.security) as master:
            master.call(c.Greeting(cachefs.__version__), c.Greeted, MASTER_S)


def cache_settings(chosen: Config) -> dict[str, Any]:
    """Fields of a `WorkerSpec` that are settings of the same name."""
    return {
        "memory_limit_bytes": chosen.integer("memory_limit"),
        "admission": chosen.text("admission"),
        "eviction": chosen.text("eviction"),
        "idle_after_s": chosen.seconds("idle_after"),
        "files_ahead": chosen.integer("files_ahead"),
        "origin_deadline_s": chosen.seconds("origin_deadline"),
        "log_level": chosen.text("log_level"),
    }
