"""`cachefs down`: unmounts and ends the cluster that `cachefs up` started."""

from __future__ import annotations

import os

import click

from cachefs.cli import output, settings
from cachefs.cli.commands import umount
from cachefs.core.addresses import address_of, is_cluster, parse_cluster
from cachefs.core.config import Config
from cachefs.core.errors import CannotMount, NotFound
from cachefs.core.mountinfo import read_mounts
from cachefs.launcher import local
from cachefs.launcher.local import LocalCluster
from cachefs.launcher.processes import Watch
from cachefs.launcher.state import MountRecord, StateHome


@click.command("down")
@click.option("--dir", "directory", metavar="DIR", help="The cluster's data directory.")
@click.option("--lazy", is_flag=True, help="Detach mounts even if they are in use.")
@settings.command_options("down")
def command(directory: str | None, lazy: bool, as_json: bool, chosen: Config) -> None:
    """Unmount the cluster on this machine, and end it. The next `up` finds its data again.

    \b
    cachefs down
    """
    home = settings.state_home(chosen)
    cluster = local.read(home, os.path.abspath(directory) if directory else "")
    if cluster is None:
        remedy = "`cachefs up` starts one"
        raise NotFound("no cluster was started here", path=directory or "", remedy=remedy)
    unmounted = []
    for record in mounts_of(cluster, home):
        unmount(record, home, lazy=lazy)
        unmounted.append(record.mountpoint)
    ended = [process.name for process in local.down(cluster)]
    if as_json:
        return output.print_json({"unmounted": unmounted, "ended": ended})
    for mountpoint in unmounted:
        click.echo(f"{output.text_of(os.fsencode(mountpoint))} is unmounted")
    click.echo(f"OK, {', '.join(ended)} ended" if ended else "OK, nothing of it was running")


def unmount(record: MountRecord, home: StateHome, *, lazy: bool) -> None:
    """Unmounts. If another process has just unmounted it, waits for the mount's client. Raises as
    `umount.unmount` for a mount that remains."""
    try:
        umount.unmount(record.mountpoint, home, lazy=lazy)
    except CannotMount:
        mount = read_mounts().at(record.mountpoint)
        if mount is not None and mount.is_cachefs:
            raise
        with Watch(record.client_process) as watch:
            watch.ended(umount.CLIENT_END_S)


def mounts_of(cluster: LocalCluster, home: StateHome) -> list[MountRecord]:
    """Returns the mounts of a cluster on this machine."""
    address = address_of(cluster.master) if cluster.master else ""
    return [
        record
        for record in home.mount_records()
        if is_cluster(record.source.url)
        and parse_cluster(record.source.url).address == address
        and record.is_served()
    ]
