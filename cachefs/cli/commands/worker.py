"""`cachefs worker`: the worker of a node, a member of a cluster, in the foreground."""

from __future__ import annotations

import re

import click

from cachefs.cli import clusters, output, settings
from cachefs.cli.commands import serving
from cachefs.core.access import is_loopback, join_address, parse_address
from cachefs.core.addresses import address_of
from cachefs.core.cluster import DEFAULT_PORT
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig
from cachefs.core.specs import WorkerSpec
from cachefs.core.tiers import parse_tiers
from cachefs.launcher.cluster import start_worker, tier_of
from cachefs.launcher.state import CACHE_NAME, StateHome, node_name


@click.command("worker")
@click.option("--background", is_flag=True, help="Return when it is a member; it logs to a file.")
@settings.command_options("worker")
def command(background: bool, as_json: bool, chosen: Config) -> int:
    """Run this node's worker. It caches a share of the cluster's data, and serves the mounts of
    this machine. Ctrl-C ends it.

    \b
    cachefs worker --master node1:19998 --tier mem:/dev/shm/c:16GiB --tier ssd:/var/cache/c:1TiB
    """
    spec = plan(chosen, settings.state_home(chosen), background=background)
    announced = output.announced(f"waiting for the master at {spec.master}; Ctrl-C ends this")
    with announced, serving.interruptible():
        started = start_worker(spec, background=background)
        child = None if background else serving.Child(started.pid)
    with serving.even_unread():
        if started.warning:
            output.warn(started.warning)
        if as_json:
            output.print_json_line({"url": started.url, "pid": started.pid, "master": spec.master})
        else:
            click.echo(
                f"OK, the worker at {started.url} (pid {started.pid}) is a member of {spec.master}"
            )
    return child.stay() if child is not None else 0


def plan(chosen: Config, home: StateHome, *, background: bool) -> WorkerSpec:
    """Returns the worker's spec. Raises BadConfig, and as making a default tier's directory."""
    master = clusters.master_of(chosen)
    tiers = chosen.items("tier") or (_default_tier(master, home, clusters.trusts(chosen)),)
    first, *_ = parse_tiers(tiers)
    weight, advertise = weight_of(chosen.text("weight")), _advertised(chosen)
    if weight != 0:
        check_reach(master, chosen.text("worker_listen"), advertise)
    return WorkerSpec(
        home=str(home.path),
        master=master,
        name=node_name(first.path),
        tiers=tiers,
        listen=chosen.text("worker_listen"),
        socket=chosen.text("socket"),
        advertise=advertise,
        weight=weight,
        security=clusters.server_security(chosen, master),
        migration_bytes_s=chosen.integer("migration_rate"),
        log_to_stderr=not background,
        **clusters.cache_settings(chosen),
    )


def _default_tier(master: str, home: StateHome, trust: bool) -> str:
    return tier_of(home.cluster_dir(address_of(master)) / CACHE_NAME, 0, trust=trust)


def check_reach(master: str, listen: str, advertise: str) -> None:
    """Raises BadConfig for a worker that owns data and advertises a loopback address, where no
    other machine can reach it, to a master on another machine."""
    host, _ = parse_address(address_of(advertise or f"http://{listen}"), 0)
    if is_loopback(host) and not is_loopback(parse_address(address_of(master), DEFAULT_PORT)[0]):
        raise BadConfig(
            f"a worker at {host} is reached from no other machine, and the master is at {master}",
            remedy="give --listen 0.0.0.0:PORT and --advertise HOST",
        )


def weight_of(text: str) -> float:
    """Returns the weight; -1 for "auto". Raises BadConfig."""
    if text == clusters.AUTO:
        return -1.0
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        raise BadConfig(f"weight: {text!r} is not a weight", remedy="write a number, or auto")
    return float(text)


def _advertised(chosen: Config) -> str:
    """Returns the URL that the worker advertises; "" if it is that of the listening socket."""
    given = chosen.text("advertise")
    if not given:
        return ""
    host, port = parse_address(given, parse_address(chosen.text("worker_listen"), 0)[1])
    scheme = "https" if chosen.text("tls_cert") else "http"
    return f"{scheme}://{join_address(host, port)}"
