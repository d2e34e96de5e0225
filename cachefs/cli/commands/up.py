"""`cachefs up`: starts a cluster on this machine."""

from __future__ import annotations

import os
from typing import Any

import click

from cachefs.cli import clusters, output, settings
from cachefs.cli.commands import serving
from cachefs.core.addresses import SCHEME, address_of
from cachefs.core.config import Config
from cachefs.launcher.local import MOST_WORKERS, LocalCluster, LocalClusterStarter


@click.command("up")
@click.option(
    "--workers", type=click.IntRange(1, MOST_WORKERS), help="Number of workers. [default: 3]"
)
@click.option("--dir", "directory", metavar="DIR", help="The data directory.")
@settings.command_options("up")
def command(workers: int | None, directory: str | None, as_json: bool, chosen: Config) -> None:
    """Start a cluster on this machine: a master and workers in the background, on loopback only.
    The next `up` finds its namespace and its cached data again.

    \b
    cachefs up --workers 3
    cachefs ufs add s3://bucket/imagenet /imagenet
    cachefs mount cachefs://127.0.0.1:19998/imagenet /mnt/imagenet
    cachefs down
    """
    where = os.path.abspath(directory) if directory else ""
    up = LocalClusterStarter(
        settings.state_home(chosen),
        where,
        cache_bytes=chosen.integer("cache_size"),
        log_level=chosen.text("log_level"),
        token_file=chosen.text("token_file"),
        no_token=not clusters.makes_token(chosen) and not chosen.text("token_file"),
        trust_directories=clusters.trusts(chosen),
    )
    with serving.interruptible():
        cluster, warnings = up.run(workers or 0)
    for warning in warnings:
        output.warn(warning)
    if as_json:
        return output.print_json(document(cluster) | {"warnings": warnings})
    for line in output.columns([[p.name, p.url, f"pid {p.pid}"] for p in cluster.processes]):
        click.echo(line)
    address = address_of(cluster.master)
    click.echo(f"OK, the cluster is ready: cachefs mount {SCHEME}{address}/ MOUNTPOINT")


def document(cluster: LocalCluster) -> dict[str, Any]:
    """Returns the cluster as a JSON document."""
    rows = [{"name": p.name, "url": p.url, "pid": p.pid} for p in cluster.processes]
    mount = f"{SCHEME}{address_of(cluster.master)}/"
    return {"directory": cluster.directory, "mount": mount, "processes": rows}
