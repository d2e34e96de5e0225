"""Clients of a cluster's servers, and specs of its mounts and nodes, made from the settings."""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

import cachefs
from cachefs.cli.settings import OF_MOUNT, state_home
from cachefs.client.admin import AdminClient
from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core.addresses import DEFAULT_MASTER, address_of, is_cluster, master_url, parse_cluster
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from cachefs.core.specs import MasterAccess, Security, WorkerSpec
from cachefs.launcher import local, tokens
from cachefs.launcher.cluster import MOUNTS_NODE, find_node, tier_of
from cachefs.launcher.state import CACHE_NAME, MountRecord, StateHome

AUTO: Final = "auto"
MASTER_S: Final = 10.0
NO_CLUSTER: Final = "start a cluster: cachefs up, or name its master: --master HOST:PORT"


def security(chosen: Config, master: str) -> Security:
    """Returns the credentials of the settings for the master at a URL. Without a token file in the
    settings the token of a master of this machine is used."""
    own = None if chosen.text("token_file") else tokens.find(state_home(chosen), master)
    return _with_files(own, chosen)


def server_security(chosen: Config, master: str) -> Security:
    """Returns the credentials of a worker. Creates the token of a master of this machine if it is
    missing. Raises BadConfig, and as `tokens.find_or_make`."""
    if not makes_token(chosen):
        return server_files(chosen)
    return _with_files(tokens.find_or_make(state_home(chosen), master), chosen)


def makes_token(chosen: Config) -> bool:
    """Returns whether a server uses the token of this machine. Raises BadConfig."""
    if chosen.text("token_file") and chosen.switch("no_token"):
        raise BadConfig("--token-file and --no-token exclude each other", remedy="give one of them")
    return not chosen.text("token_file") and not chosen.switch("no_token")


def server_files(chosen: Config) -> Security:
    """Returns the credential files that the settings name."""
    names = ("token_file", "tls_cert", "tls_key", "tls_ca")
    return msgspec.convert({name: chosen.text(name) for name in names}, Security)


def check_authority(chosen: Config) -> None:
    """Raises BadConfig for a master that would call its workers over TLS without a CA that verifies
    their certificates."""
    if chosen.text("tls_cert") and not uses_tls(chosen):
        raise BadConfig(
            "this master calls its workers over TLS (for free, du, location), and no authority is"
            " set that verifies their certificates",
            remedy="give --tls-ca FILE, or --tls for the authorities of the system",
        )


def _with_files(own: Security | None, chosen: Config) -> Security:
    found = server_files(chosen)
    if own is None:
        return found
    return msgspec.structs.replace(found, token_file=own.token_file, own_token=True)


def uses_tls(chosen: Config) -> bool:
    """Returns whether a master that was given without a scheme is reached over TLS."""
    return chosen.switch("tls", undecided=bool(chosen.text("tls_ca")))


def access(chosen: Config) -> MasterAccess:
    """Returns how the settings reach a master, for the record of a mount."""
    return MasterAccess(chosen.text("token_file"), uses_tls(chosen), chosen.text("tls_ca"))


def of_mount(record: MountRecord, chosen: Config) -> Config:
    """Returns the settings of a command about a mount of a cluster. What they leave open of the
    connection to the mount's master is as when it was mounted. Root uses nothing that another
    user recorded: that user's token file may be any file."""
    if record.owner >= 0 or _is_elsewhere(record.source.url, chosen):
        return chosen
    return chosen.completed(msgspec.structs.asdict(record.master_access), OF_MOUNT)


def _is_elsewhere(url: str, chosen: Config) -> bool:
    """Returns True if the settings name another master than a URL does."""
    given = chosen.text("master")
    if not given:
        return False
    one, other = (address_of(master_url(each, tls=False)) for each in (given, url))
    return one != other


def master_of(chosen: Config) -> str:
    """Returns the URL of the master: of the setting, else of `cachefs up`, else the default one of
    this machine. Raises BadConfig."""
    given = chosen.text("master")
    if given:
        return master_url(given, tls=uses_tls(chosen))
    cluster = local.read(state_home(chosen))
    return cluster.master if cluster is not None else DEFAULT_MASTER


def is_cluster_configured(chosen: Config) -> bool:
    """Returns True if the settings name a master, or any process of `cachefs up` runs here, even if
    its master has died."""
    if chosen.text("master"):
        return True
    up = local.read(state_home(chosen))
    return up is not None and up.runs


def is_master(where: str) -> bool:
    """Returns True for the URL of a cluster as a whole, without a path."""
    return is_cluster(where) and not parse_cluster(where).path


def connect_admin(chosen: Config) -> AdminClient:
    """Returns a client of the admin API; sends nothing yet. Raises BadConfig, AccessDenied."""
    url = master_of(chosen)
    remedy = "" if is_cluster_configured(chosen) else NO_CLUSTER
    return AdminClient(url, security(chosen, url), remedy=remedy)


def admin_at(url: str, chosen: Config) -> AdminClient:
    """Returns a client of the admin API at a URL; sends nothing yet. Raises as `connect_admin`."""
    return AdminClient(url, security(chosen, url))


def admin_of(url: str, chosen: Config) -> tuple[AdminClient, bytes]:
    """Returns a client of the master of a path `cachefs://…` (--master takes precedence), and the
    path below the namespace root. Otherwise as `connect_admin`."""
    tls = uses_tls(chosen)
    master = master_url(chosen.text("master") or url, tls=tls)
    return AdminClient(master, security(chosen, master)), os.fsencode(parse_cluster(url).path)


def connect_worker(url: str, chosen: Config, master: str) -> HttpClient:
    """Returns a client of the worker at `url`, with the credentials for the master at `master`."""
    return HttpClient(url, security(chosen, master), name=f"the worker at {url}")


def source_spec(url: str, chosen: Config) -> UfsSpec:
    """Returns a path of a cluster as a mount's source. Raises BadConfig, also for its options."""
    given = chosen.source_options(keep=())
    if given:
        names = ", ".join(sorted(given))
        raise BadConfig(
            f"a path of a cluster takes no source options, got {names}",
            remedy="give them to `cachefs ufs add`",
        )
    return UfsSpec(parse_cluster(url).url)


def mounts_node(url: str, home: StateHome, chosen: Config, foreground: bool) -> WorkerSpec:
    """Returns the worker that a mount starts on a machine without one. It owns no data, and ends
    with the last mount."""
    path = parse_cluster(url)
    directory = home.node_dir(path.address, MOUNTS_NODE)
    cache_dir = chosen.text("cache_dir") or str(directory / CACHE_NAME)
    master = master_url(path.address, tls=uses_tls(chosen))
    return WorkerSpec(
        home=str(home.path),
        master=master,
        name=MOUNTS_NODE,
        tiers=(tier_of(cache_dir, chosen.integer("cache_size"), trust=trusts(chosen)),),
        weight=0.0,
        stays=False,
        security=security(chosen, master),
        log_to_stderr=foreground,
        **cache_settings(chosen),
    )


def check_master(node: WorkerSpec) -> None:
    """Checks that the master answers and accepts the credentials, before a node that waits for it
    is started. Checks nothing if the node runs already: it may need no master. Raises Unreachable,
    AccessDenied, DeadlineExceeded."""
    if find_node(StateHome(node.home), address_of(node.master)) is None:
        with HttpClient(node.master, node.security) as master:
            master.call(c.Greeting(cachefs.__version__), c.Greeted, MASTER_S)


def trusts(chosen: Config) -> bool:
    """Returns whether directories that other users may write are used."""
    return chosen.switch("trust_directories")


def cache_settings(chosen: Config) -> dict[str, Any]:
    """Returns the fields of a `WorkerSpec` that are settings of the same name."""
    return {
        "memory_limit_bytes": chosen.integer("memory_limit"),
        "admission": chosen.text("admission"),
        "eviction": chosen.text("eviction"),
        "idle_after_s": chosen.seconds("idle_after"),
        "files_ahead": chosen.integer("files_ahead"),
        "origin_deadline_s": chosen.seconds("origin_deadline"),
        "trust_directories": trusts(chosen),
        "log_level": chosen.text("log_level"),
    }
