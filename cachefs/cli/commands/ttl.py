"""`cachefs ttl`: how long cached data of a path is kept."""

from __future__ import annotations

import click

from cachefs.cli import output, settings
from cachefs.cli.policy_calls import open_policies
from cachefs.core.config import Config
from cachefs.core.policies import FREE, formatted, parse


@click.command("ttl")
@click.argument("path")
@click.argument("time", required=False)
@click.option("--action", type=click.Choice([FREE]), help="Action after TIME: free (the default).")
@settings.command_options("ttl")
def command(path: str, time: str | None, action: str | None, as_json: bool, chosen: Config) -> None:
    """Free the cached data at or below PATH when TIME has passed since it was fetched. `none`
    unsets the TTL, `never` keeps the data. Nothing is deleted at the origin. Without TIME: show
    it.

    \b
    cachefs ttl /mnt/data/other 12h
    cachefs ttl /mnt/data/other
    """
    policy = parse([f"ttl={time}"] if time not in (None, "none") else [])
    if action is not None and time is not None:
        policy = parse([f"ttl={time}", f"ttl_action={action}"])
    with open_policies(path, chosen) as at:
        if time is not None:
            at.set(policy, ["ttl_s", "ttl_action"] if time == "none" else [])
        found = at.get()
    shown = formatted(found.policy)["ttl"]
    if as_json:
        facts = {"path": at.shown(), "ttl_s": found.policy.ttl_s}
        return output.print_json(facts | {"action": found.policy.ttl_action})
    where = found.where["ttl_s"]
    by = f", by {at.shown_where(where)}" if where.startswith("/") else ""
    click.echo(f"{at.shown()}: ttl {shown} ({found.policy.ttl_action}){by}")
