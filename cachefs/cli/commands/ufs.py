"""`cachefs ufs`: the sources of a cluster, and their directories in its namespace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec

from cachefs.cli import clusters, output, settings
from cachefs.cli.paths import namespace_path
from cachefs.client.admin import AdminClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from cachefs.core.units import format_duration

_Command = Callable[..., Any]


@click.group("ufs")
@settings.setting_flags("ufs")
def command(**flags: Any) -> None:
    """Manage the sources of a cluster, and their directories in its namespace.

    \b
    cachefs ufs add s3://bucket/imagenet /imagenet
    cachefs ufs ls
    cachefs ufs rm /imagenet
    """


@command.command("add")
@click.argument("source")
@click.argument("path")
@settings.setting_flags("ufs add")
@output.json_flag
@output.debug_flag
def add(
    source: str, path: str, as_json: bool, debug: bool, config_file: str | None, **flags: Any
) -> None:
    """Show SOURCE (s3://bucket/prefix, file:///path) at the directory PATH of the namespace. The
    master and every worker read it with their own credentials."""
    chosen = settings.load_settings(flags, config_file)
    where, spec = namespace_path(path), _source(source, chosen)
    call = c.AddUfs(where, spec, chosen.seconds("sync_interval"))
    with _master(chosen) as master:
        added = master.call(call, c.UfsAdded)
    if added.warning:
        print(f"cachefs: warning: {added.warning}", file=sys.stderr)
    shown = "/" + output.text_of(where.strip(b"/"))
    if as_json:
        facts = {"path": shown, "source": spec.url, "ino": added.root.ino}
        output.print_json(facts | {"warning": added.warning})
    else:
        click.echo(f"OK, {spec.url} is at {shown}")


@command.command("ls")
@settings.setting_flags("ufs")
@output.json_flag
@output.debug_flag
def list_(as_json: bool, debug: bool, config_file: str | None, **flags: Any) -> None:
    """List the sources with their directory, sync interval and state."""
    with _master(settings.load_settings(flags, config_file)) as master:
        rows = master.call(c.ListUfs(), c.UfsTable).rows
    if as_json:
        return output.print_json([_document(row) for row in rows])
    if not rows:
        click.echo("no source yet: cachefs ufs add SOURCE /path")
        return
    head = ["PATH", "SOURCE", "SYNC", "STATE"]
    for line in output.columns([head, *(_row(row) for row in rows)], right=(2,)):
        click.echo(line)


@command.command("rm")
@click.argument("path")
@settings.setting_flags("ufs")
@output.json_flag
@output.debug_flag
def remove(path: str, as_json: bool, debug: bool, config_file: str | None, **flags: Any) -> None:
    """Remove the source at PATH from the namespace. Nothing is deleted at the origin."""
    where = namespace_path(path)
    with _master(settings.load_settings(flags, config_file)) as master:
        master.call(c.RemoveUfs(where), m.Done)
    shown = "/" + output.text_of(where.strip(b"/"))
    if as_json:
        output.print_json({"path": shown, "removed": True})
    else:
        click.echo(f"OK, nothing is at {shown} any more")


def _master(chosen: Config) -> AdminClient:
    return clusters.connect_admin(chosen, settings.state_home(chosen))


def _source(source: str, chosen: Config) -> UfsSpec:
    from cachefs.cli.commands.mount import source_spec  # only `add` needs its imports

    if "://" not in source:
        raise BadConfig(f"not a source: {source!r}", remedy="write it as s3:// or file:///path")
    spec = source_spec(source, chosen)
    if spec.url.startswith("cachefs://"):
        raise BadConfig("a cluster cannot be a source of another one")
    return spec


def _state(row: c.UfsRow) -> str:
    return row.warning or "no answer" if row.origin_down else "ok"


def _row(row: c.UfsRow) -> list[str]:
    sync = "never" if row.sync_interval_s < 0 else format_duration(row.sync_interval_s)
    return [output.text_of(row.path) or "/", row.source.url, sync, _state(row)]


def _document(row: c.UfsRow) -> dict[str, Any]:
    facts = {"path": output.text_of(row.path) or "/", "source": row.source.url}
    facts["options"] = msgspec.to_builtins(row.source.options)
    facts |= {"sync_interval_s": row.sync_interval_s, "origin_down": row.origin_down}  # type: ignore[dict-item]
    return facts | {"warning": row.warning}
