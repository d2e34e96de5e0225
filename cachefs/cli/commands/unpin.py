"""`cachefs unpin`: removes the pin of a path."""

from __future__ import annotations

import click

from cachefs.cli import output, settings
from cachefs.cli.policy_calls import open_policies
from cachefs.core.config import Config
from cachefs.core.policies import FROZEN_BY, Policy


@click.command("unpin")
@click.argument("path")
@settings.command_options("unpin")
def command(path: str, as_json: bool, chosen: Config) -> None:
    """Remove the pin of PATH, and those of its freezes. Cached data stays until its space is
    needed.

    \b
    cachefs unpin /mnt/data/val
    """
    with open_policies(path, chosen) as at:
        said = at.get().said
        # An earlier server refuses the name of a policy that it does not know.
        at.set(Policy(), ["pin", FROZEN_BY] if said.frozen_by else ["pin"])
        now = at.get()
    if as_json:
        return output.print_json({"path": at.shown(), "pin": bool(now.policy.pin)})
    if now.policy.pin:
        click.echo(f"{at.shown()} stays pinned, by {at.shown_where(now.where['pin'])}")
    elif said.own_pin:
        click.echo(f"OK, {at.shown()} is no longer pinned")
    else:
        click.echo(f"{at.shown()} was not pinned")
