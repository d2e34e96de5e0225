"""`cachefs quota`: the limit of cached bytes below a path, and their current number."""

from __future__ import annotations

import click

from cachefs.cli import clusters, output, settings
from cachefs.cli.policy_calls import PolicyTarget, open_policies
from cachefs.client.admin import AdminClient
from cachefs.core import messages as m
from cachefs.core import policies
from cachefs.core.addresses import is_cluster
from cachefs.core.config import Config
from cachefs.core.policies import parse
from cachefs.core.units import format_size


@click.command("quota")
@click.argument("path")
@click.argument("size", required=False)
@settings.command_options("quota")
def command(path: str, size: str | None, as_json: bool, chosen: Config) -> None:
    """Limit the cached bytes at or below PATH to SIZE; reads beyond it bypass the cache. `none`
    removes the limit. Without a size: show the quotas of PATH and below it, and their use.

    \b
    cachefs quota /mnt/data/other 20MiB
    cachefs quota /mnt/data/other
    """
    with open_policies(path, chosen) as at:
        if size is not None:
            at.set(
                parse([f"quota={size}"]) if size != "none" else policies.Policy(), ["quota_bytes"]
            )
        found = at.get()
        rows = _quotas(at, found)
        used = _used(at, chosen) if rows else {}
    if as_json:
        return output.print_json(
            [
                {"path": at.shown(one), "quota_bytes": most, "used_bytes": used.get(one, 0)}
                for one, most in rows
            ]
        )
    for one, most in rows:
        used_bytes = used.get(one, 0)
        share = output.percent_of(used_bytes, most)
        click.echo(f"{at.shown(one)}: {format_size(used_bytes)} of {format_size(most)} ({share})")
    if not rows:
        click.echo(f"{at.shown()}: no quota")


def _quotas(at: PolicyTarget, found: m.PoliciesAt) -> list[tuple[bytes, int]]:
    """Returns (path, bytes) of the quotas that apply to a path, and of those below it."""
    below = [(one.path, one.policy.quota_bytes or 0) for one in found.below]
    return [one for one in (*found.quotas, *below) if one[1]]


def _used(at: PolicyTarget, chosen: Config) -> dict[bytes, int]:
    """Returns the used bytes by path of the namespace; in a cluster, of all workers as of their
    last heartbeats."""
    if at.session is None:
        assert isinstance(at.server, AdminClient), "else it is a session"
        return {where: used for where, _, used in at.server.quotas(at.path)}
    url = at.session.record.source.url
    if is_cluster(url):
        master, _ = clusters.admin_of(url, clusters.of_mount(at.session.record, chosen))
        with master:
            return {where: used for where, _, used in master.quotas(at.path)}
    cache = at.session.call(m.Status(), m.StatusReply).status["cache"]
    return {where.strip("/").encode(): used for where, used in cache["quota_used_bytes"].items()}
