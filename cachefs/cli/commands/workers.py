"""`cachefs workers`: the members of a cluster; drains and removes them."""

from __future__ import annotations

import time
from typing import Any, Final

import click
import msgspec

from cachefs.cli import clusters, output, settings
from cachefs.cli.cluster_files import SHOWN_ID
from cachefs.client.admin import AdminClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.addresses import address_of
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, NotFound
from cachefs.core.units import format_duration, format_size

POLL_S: Final = 0.5
_NUMBERS: Final = ("WEIGHT", "USED", "CAPACITY", "SEEN")  # aligned to the right
_HEAD: Final = ["WORKER", "ADDRESS", "HOST", "STATE", "TIERS", *_NUMBERS, "VERSION"]
_RIGHT: Final = tuple(map(_HEAD.index, _NUMBERS))


@click.group("workers", invoke_without_command=True)
@settings.setting_flags("workers")
@output.json_flag
@output.debug_flag
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, **flags: Any) -> Any:
    """List the workers of a cluster, as `cachefs workers ls` does; drain and remove them.

    \b
    cachefs workers ls
    cachefs workers drain node3 --wait     # hand its data over before you stop it
    cachefs workers remove 3f2a            # a worker whose process has ended
    """
    if ctx.invoked_subcommand is None:
        return ctx.invoke(list_, as_json=as_json)
    if as_json:
        raise click.UsageError("write --json after the command's name", ctx)
    return None


@command.command("ls")
@settings.command_options("workers")
def list_(as_json: bool, chosen: Config) -> None:
    """List the workers of a cluster: state, tiers, weight, used and total space, version.

    \b
    cachefs workers ls --json
    """
    with clusters.connect_admin(chosen) as master:
        table = master.call(c.ListWorkers(), c.WorkerTable)
    if as_json:
        return output.print_json(document(table))
    for line in lines(table):
        click.echo(line)


def lines(table: c.WorkerTable) -> list[str]:
    """Returns the table, and whether data is moving."""
    if not table.rows:
        return ["no worker yet: cachefs worker --master URL --tier KIND:DIR:SIZE"]
    view = table.view
    moving = ", data is moving to its new places" if view.before else ""
    owning = f"{len(view.members)} worker{'s' * (len(view.members) != 1)} owning data"
    return [
        *output.columns([_HEAD, *(_row(row) for row in table.rows)], right=_RIGHT),
        f"epoch {view.epoch}: {owning}{moving}",
    ]


def document(table: c.WorkerTable) -> dict[str, Any]:
    """Returns the table as a JSON document."""
    rows = [msgspec.to_builtins(row) for row in table.rows]
    return {"epoch": table.view.epoch, "moving": bool(table.view.before), "workers": rows}


def _row(row: c.WorkerRow) -> list[str]:
    return [
        row.id[:SHOWN_ID],
        address_of(row.url),
        row.host or "-",
        row.state,
        _tiers(row.facts.get("tiers", [])),
        f"{row.weight:g}",
        format_size(row.used_bytes),
        format_size(row.capacity_bytes),
        format_duration(row.seen_s),
        row.version or "-",
    ]


def _tiers(tiers: list[dict[str, Any]]) -> str:
    """Returns the kinds of a worker's tiers, with the state of each that does not work."""
    shown = (
        tier.get("kind", "tier") + ("" if tier["state"] == "normal" else f" {tier['state']}")
        for tier in tiers
    )
    return ", ".join(shown) or "-"


@command.command("drain")
@click.argument("worker")
@click.option("--undo", is_flag=True, help="Let it own data again.")
@click.option("--wait", is_flag=True, help="Return when it has handed over all data.")
@settings.command_options("workers")
def drain(worker: str, undo: bool, wait: bool, as_json: bool, chosen: Config) -> None:
    """Let WORKER (its id or a prefix of it, HOST:PORT, or HOST) hand its data over to the others;
    the origins are not read. Stop it once it is drained.

    \b
    cachefs workers drain node3 --wait
    """
    with clusters.connect_admin(chosen) as master:
        row = find(master.call(c.ListWorkers(), c.WorkerTable).rows, worker)
        master.call(c.Drain(row.id, undo), m.Done)
        state = _drained(master, row.id) if wait and not undo else "serving" if undo else "draining"
    if as_json:
        return output.print_json({"worker": row.id, "state": state})
    click.echo(f"OK, worker {row.id[:SHOWN_ID]} at {address_of(row.url)} is {state}")


@command.command("remove")
@click.argument("worker")
@settings.command_options("workers")
def remove(worker: str, as_json: bool, chosen: Config) -> None:
    """Remove WORKER, which is lost: its process has ended. Drain a worker before you stop it.

    \b
    cachefs workers remove 3f2a
    """
    with clusters.connect_admin(chosen) as master:
        row = find(master.call(c.ListWorkers(), c.WorkerTable).rows, worker)
        master.call(c.RemoveWorker(row.id), m.Done)
    if as_json:
        return output.print_json({"worker": row.id, "removed": True})
    click.echo(f"OK, worker {row.id[:SHOWN_ID]} is removed")


def find(rows: list[c.WorkerRow], name: str) -> c.WorkerRow:
    """Returns the worker with this id, prefix of an id, HOST:PORT or HOST. Raises NotFound."""
    exact = [row for row in rows if name in (row.id, row.url, address_of(row.url))]
    found = exact or [row for row in rows if row.id.startswith(name) or row.host == name]
    if len(found) == 1:
        return found[0]
    how_many = f"{len(found)} workers match" if found else "no worker matches"
    raise NotFound(f"{how_many} {name!r}", remedy="`cachefs workers` lists them with their ids")


def _drained(master: AdminClient, worker: str) -> str:
    """Waits until the worker has handed over all data, and returns its state. Raises CacheFSError
    if it is lost or removed first."""
    while True:
        rows = master.call(c.ListWorkers(), c.WorkerTable).rows
        row = next((row for row in rows if row.id == worker), None)
        if row is None or row.state == "lost":
            raise CacheFSError(f"worker {worker[:SHOWN_ID]} was lost before it was drained")
        if row.state != "draining":
            return row.state
        time.sleep(POLL_S)
