"""`cachefs policy`: the policies of a path, and the paths that set them."""

from __future__ import annotations

from typing import Any

import click

from cachefs.cli import output, settings
from cachefs.cli.policy_calls import PolicyTarget, open_policies, policy_text
from cachefs.core import messages as m
from cachefs.core import policies
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig
from cachefs.core.policies import KEYS, field_of, formatted, parse

_UNSET = {
    "admission": "as the worker is set",
    "eviction": "as the worker is set",
    "sync_interval": "of the source",
    "profile": "none",
}


@click.group("policy")
@settings.setting_flags("policy")
def command(**flags: Any) -> None:
    """Manage the policies of a path. Everything below it inherits them.

    \b
    cachefs policy show /mnt/data/train
    cachefs policy set /mnt/data/train profile=train-read ttl=7d
    cachefs policy unset /mnt/data/train ttl
    """


@command.command("show")
@click.argument("path")
@settings.command_options("policy")
def show(path: str, as_json: bool, chosen: Config) -> None:
    """Show the policies of PATH, where each value is set, and the policies set below it.

    \b
    cachefs policy show /mnt/data/train
    """
    with open_policies(path, chosen) as at:
        found = at.get()
    if as_json:
        return output.print_json(document(at, found))
    texts = formatted(found.policy)
    rows = [[key, texts.get(key) or _unset(key), _where(at, found, key)] for key in KEYS]
    for line in output.columns([["POLICY", "VALUE", "FROM"], *rows]):
        click.echo(line)
    if found.said.frozen_by:
        click.echo(f"frozen by: {', '.join(found.said.frozen_by)}")
    for one in found.below:
        click.echo(f"below: {at.shown(one.path)}  {policy_text(one.policy)}")
    if found.below_count > len(found.below):
        click.echo(f"and {found.below_count - len(found.below)} more below")


def _unset(key: str) -> str:
    """Returns what stands for a value that the server does not have: one of an earlier version
    does not know every key."""
    return _UNSET.get(key, "not known to this server")


def _where(at: PolicyTarget, found: m.PoliciesAt, key: str) -> str:
    return at.shown_where(found.where.get(field_of(key), policies.DEFAULT))


def document(at: PolicyTarget, found: m.PoliciesAt) -> dict[str, Any]:
    """Returns the policies as a JSON document: numbers in bytes and seconds, null if unset."""
    fields = [(key, field_of(key)) for key in KEYS]
    return {
        "path": at.shown(),
        "policy": {field: getattr(found.policy, field) for _, field in fields},
        "from": {field: _where(at, found, key) for key, field in fields},
        "frozen_by": [*(found.said.frozen_by or ())],
        "below": [{"path": at.shown(one.path), **formatted(one.policy)} for one in found.below],
        "below_count": found.below_count,
    }


@command.command("set")
@click.argument("path")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@settings.command_options("policy")
def set_(path: str, values: tuple[str, ...], as_json: bool, chosen: Config) -> None:
    """Set policies at PATH; the other policies set there stay.

    \b
    cachefs policy set /mnt/data/train profile=train-read ttl=7d

    KEY is pin, ttl, ttl_action, quota, replicas, local_copy, admission, eviction, sync_interval,
    sync_background, view or profile.
    """
    policy = parse(values)
    with open_policies(path, chosen) as at:
        _print_policy(at, at.set(policy), as_json)


@command.command("unset")
@click.argument("path")
@click.argument("keys", nargs=-1, metavar="KEY...")
@click.option("--all", "every", is_flag=True, help="Remove all policies set there.")
@settings.command_options("policy")
def unset(path: str, keys: tuple[str, ...], every: bool, as_json: bool, chosen: Config) -> None:
    """Remove policies from PATH: the inherited values apply again.

    \b
    cachefs policy unset /mnt/data/train ttl
    """
    if every == bool(keys):
        raise BadConfig("give keys, or --all", remedy=f"keys are {', '.join(KEYS)}")
    fields = [field_of(key) for key in (KEYS if every else keys)]
    with open_policies(path, chosen) as at:
        _print_policy(at, at.set(policies.Policy(), fields), as_json)


def _print_policy(at: PolicyTarget, policy: policies.Policy, as_json: bool) -> None:
    if as_json:
        output.print_json({"path": at.shown(), **formatted(policy)})
    else:
        click.echo(f"OK, {at.shown()}: {policy_text(policy)}")
