"""`cachefs ufs`: the sources of a cluster, and their directories in its namespace."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

import click
import msgspec

from cachefs.cli import clusters, output, settings
from cachefs.cli.paths import namespace_path
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from cachefs.core.units import format_duration, parse_duration

_Command = Callable[..., Any]


_push_flag = click.option(
    "--push",
    metavar="FEED",
    help="How changes are reported: webhook:NAME (events, with the secret of the credential NAME), "
    "sqs:URL (events in a queue), poll or poll:5s (times of directories), or none.",
)


@click.group("ufs")
@settings.setting_flags("ufs")
def command(**flags: Any) -> None:
    """Manage the sources of a cluster, and their directories in its namespace.

    \b
    cachefs ufs add s3://bucket/imagenet /imagenet
    cachefs ufs set /imagenet --sync-interval 5m
    cachefs ufs ls -l
    cachefs ufs rm /imagenet
    """


@command.command("add")
@click.argument("source")
@click.argument("path")
@_push_flag
@settings.command_options("ufs add")
def add(source: str, path: str, push: str | None, as_json: bool, chosen: Config) -> None:
    """Show SOURCE (s3://bucket/prefix, file:///path) at the directory PATH of the namespace. The
    master and every worker read it with their own credentials.

    \b
    cachefs ufs add s3://bucket/imagenet /imagenet
    """
    where, spec = namespace_path(path), _source(source, chosen)
    call = c.AddUfs(where, spec, chosen.seconds("sync_interval"), _feed(push) or "")
    with clusters.connect_admin(chosen) as master:
        added = master.call(call, c.UfsAdded)
    if added.warning:
        print(f"cachefs: warning: {added.warning}", file=sys.stderr)
    shown = _shown(where)
    if as_json:
        facts = {"path": shown, "source": spec.url, "ino": added.root.ino}
        output.print_json(facts | {"warning": added.warning})
    else:
        click.echo(f"OK, {spec.url} is at {shown}")


@command.command("set")
@click.argument("path")
@_push_flag
@click.option(
    "--push-interval",
    metavar="DURATION",
    help="How long names are valid while changes are reported (1h; 0s: as without a feed).",
)
@click.option("--unset", multiple=True, metavar="NAME", help="Remove an option (repeatable).")
@settings.command_options("ufs set")
def change(
    path: str,
    push: str | None,
    push_interval: str | None,
    unset: tuple[str, ...],
    as_json: bool,
    chosen: Config,
) -> None:
    """Change options and sync interval of the source at PATH. Its inodes and cached bytes stay, and
    mounts go on. Only flags count, no configuration files.

    \b
    cachefs ufs set /imagenet --sync-interval 5m
    """
    where = namespace_path(path)
    options = chosen.source_options(keep=())
    interval_s = chosen.seconds("sync_interval") if chosen.is_flag("sync_interval") else None
    push_interval_s = None if push_interval is None else parse_duration(push_interval)
    if not (options or unset) and all(one is None for one in (interval_s, push, push_interval_s)):
        raise BadConfig("nothing to change", remedy="give an option: cachefs ufs set --help")
    call = c.SetUfs(where, options, unset, interval_s, _feed(push), push_interval_s)
    with clusters.connect_admin(chosen) as master:
        row = master.call(call, c.UfsChanged).row
    if as_json:
        output.print_json(_document(row))
    else:
        click.echo(f"OK, {row.source.url} at {_shown(where)} is changed")


@command.command("ls")
@click.option("-l", "long", is_flag=True, help="Show the options, too.")
@settings.command_options("ufs")
def list_(long: bool, as_json: bool, chosen: Config) -> None:
    """List the sources with their directory, sync interval and state.

    \b
    cachefs ufs ls -l
    """
    with clusters.connect_admin(chosen) as master:
        rows = master.call(c.ListUfs(), c.UfsTable).rows
    if as_json:
        return output.print_json([_document(row) for row in rows])
    if not rows:
        click.echo("no source yet: cachefs ufs add SOURCE /path")
        return
    more = ["OPTIONS", "PUSH", "EVENTS", "BACKGROUND SYNC"] if long else []
    head = ["PATH", "SOURCE", "SYNC", *more, "STATE"]
    for line in output.columns([head, *(_row(row, long) for row in rows)], right=(2,)):
        click.echo(line)


@command.command("rm")
@click.argument("path")
@click.option("--force", is_flag=True, help="Even if paths of it are pinned.")
@settings.command_options("ufs")
def remove(path: str, force: bool, as_json: bool, chosen: Config) -> None:
    """Remove the source at PATH from the namespace. Nothing is deleted at the origin.

    \b
    cachefs ufs rm /imagenet
    """
    where = namespace_path(path)
    with clusters.connect_admin(chosen) as master:
        master.call(c.RemoveUfs(where, force), m.Done)
    shown = _shown(where)
    if as_json:
        output.print_json({"path": shown, "removed": True})
    else:
        click.echo(f"OK, nothing is at {shown} any more")


def _feed(push: str | None) -> str | None:
    """Returns the setting of a feed: "" for none."""
    return "" if push == "none" else push


def _source(source: str, chosen: Config) -> UfsSpec:
    from cachefs.cli.server_plans import source_spec  # only `add` needs its imports

    if "://" not in source:
        raise BadConfig(f"not a source: {source!r}", remedy="write it as s3:// or file:///path")
    spec = source_spec(source, chosen)
    if spec.url.startswith("cachefs://"):
        raise BadConfig("a cluster cannot be a source of another one")
    return spec


def _state(row: c.UfsRow) -> str:
    if row.origin_down:
        return row.warning or "no answer"
    return f"changes are not reported: {row.feed_error}" if row.feed_error else "ok"


def _shown(where: bytes) -> str:
    return "/" + output.text_of(where.strip(b"/"))


def _row(row: c.UfsRow, long: bool) -> list[str]:
    sync = "never" if row.sync_interval_s < 0 else format_duration(row.sync_interval_s)
    options = ",".join(f"{name}={value}" for name, value in sorted(row.source.options.items()))
    more = [options or "-", row.push or "-", _events(row), _background(row)] if long else []
    return [output.text_of(row.path) or "/", row.source.url, sync, *more, _state(row)]


def _events(row: c.UfsRow) -> str:
    """Returns how many names were reported since the master's start, and how long ago the last one;
    and until when every change was reported."""
    if not row.feed_current_at:
        return "-"
    last = f", the last {_ago(row.pushed_at)}" if row.pushed else ""
    return f"{row.pushed}{last}; all until {_ago(row.feed_current_at)}"


def _ago(at: float) -> str:
    return f"{format_duration(max(0.0, time.time() - at))} ago"


def _background(row: c.UfsRow) -> str:
    """Returns how long ago the last complete background sync began, and when the next is due."""
    if not (row.background_last_at or row.background_next_at):
        return "-"
    now_s = time.time()
    last = "none yet"
    if row.background_last_at:
        last = f"{format_duration(max(0.0, now_s - row.background_last_at))} ago"
    if not row.background_next_at:
        return last
    return f"{last}, next in {format_duration(max(0.0, row.background_next_at - now_s))}"


def _document(row: c.UfsRow) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": output.text_of(row.path) or "/", "source": row.source.url}
    facts["options"] = msgspec.to_builtins(row.source.options)
    return facts | {name: getattr(row, name) for name in _SAME_IN_DOCUMENTS}


_SAME_IN_DOCUMENTS: Final = (
    *("sync_interval_s", "origin_down", "push", "pushed", "pushed_at", "push_interval_s"),
    *("feed_current_at", "feed_error"),
    *("background_last_at", "background_next_at", "background_error", "warning"),
)
