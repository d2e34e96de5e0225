"""`cachefs cache`: data that mounts and workers left cached on this machine, and its removal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import click
import msgspec

from cachefs.cli import output, owners, settings
from cachefs.core.config import Config
from cachefs.core.errors import AccessDenied, BadConfig, InUse, NotFound
from cachefs.core.units import format_duration, format_size, parse_duration
from cachefs.launcher import cache_entries
from cachefs.launcher.cache_entries import Entry
from cachefs.launcher.state import StateHome

DRAW_S: Final = 0.2
MINUTE_S: Final = 60.0
_HEAD: Final = ["ID", "SOURCE", "CACHED", "NAMES", "USED", "STATE", "DIRECTORY"]


@click.group("cache")
@settings.setting_flags("cache")
def command(**flags: Any) -> None:
    """Manage the cached data of mounts and workers in this user's state home, also of those that
    have ended.

    \b
    cachefs cache ls
    cachefs cache rm s3://bucket/train
    cachefs cache rm --unused --older-than 30d --dry-run
    """


@command.command("ls")
@settings.command_options("cache")
def list_(as_json: bool, chosen: Config) -> None:
    """List sources and workers with their cached bytes, names, last use, and whether a process uses
    them; the least recently used first.

    \b
    cachefs cache ls --json
    """
    home = settings.state_home(chosen)
    found = cache_entries.entries(home)
    if as_json:
        return output.print_json([document(one) for one in found])
    if not found:
        click.echo(f"nothing is kept under {home.path}")
        return
    now_s = time.time()
    for line in output.columns([_HEAD, *(_row(one, now_s) for one in found)], right=(2, 3, 4)):
        click.echo(line)


@command.command("rm")
@click.argument("what", nargs=-1, metavar="[ID|SOURCE|DIRECTORY]...")
@click.option("--unused", is_flag=True, help="Everything that no process uses.")
@click.option(
    "--older-than", metavar="TIME", help="With --unused: not used for this long, e.g. 30d."
)
@click.option("--names", is_flag=True, help="Also remove names, policies, load jobs and logs.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@settings.command_options("cache")
def remove(
    what: tuple[str, ...],
    unused: bool,
    older_than: str | None,
    names: bool,
    dry_run: bool,
    as_json: bool,
    chosen: Config,
) -> None:
    """Remove the cached bytes of ended mounts and workers, named as `cachefs cache ls` shows them.
    An entry that a process uses is never removed. Nothing is deleted at the origin.

    \b
    cachefs cache rm 7264607a34caeacd
    cachefs cache rm s3://bucket/train --names
    cachefs cache rm --unused --older-than 30d
    """
    if unused == bool(what) or (older_than is not None and not unused):
        raise click.UsageError("give what to remove, or --unused (with --older-than)")
    home = settings.state_home(chosen)
    _check_own(home)
    found = cache_entries.entries(home)
    entries = _unused(found, older_than) if unused else choose(found, what)
    check(entries, found)
    removed = []
    for one in entries:
        steps = (
            iter([_size(one, names)]) if dry_run else cache_entries.remove(one, home, names=names)
        )
        removed.append((one, _counted(one, steps, _size(one, names))))
    if as_json:
        facts = [{**document(one), "removed_bytes": size} for one, size in removed]
        return output.print_json({"dry_run": dry_run, "names": names, "removed": facts})
    _say(removed, dry_run)


def _check_own(home: StateHome) -> None:
    """Raises AccessDenied for another user's state home: links in it could lead root out of it."""
    if home.owner != os.geteuid():
        owner = owners.shown_user(home.owner)
        remedy = f"remove it as that user: sudo -H -u {owner} cachefs cache rm ..."
        raise AccessDenied(f"it is of user {owner}", path=str(home.path), remedy=remedy)


def document(entry: Entry) -> dict[str, Any]:
    """Returns an entry as a JSON document."""
    return {**msgspec.to_builtins(entry), "in_use": bool(entry.pid)}


def choose(found: Sequence[Entry], what: Sequence[str]) -> list[Entry]:
    """Returns the entries that are named by id, source or directory, each once. Raises NotFound."""
    chosen: dict[str, Entry] = {}
    for name in what:
        path = os.path.abspath(name)
        matching = [
            one
            for one in found
            if name in (one.id, one.source) or path in (one.directory, *one.cache_dirs)
        ]
        if not matching:
            remedy = "`cachefs cache ls` lists the entries"
            raise NotFound("no such source, id or directory", path=name, remedy=remedy)
        chosen |= {one.directory: one for one in matching}
    return [*chosen.values()]


def check(chosen: Sequence[Entry], found: Sequence[Entry]) -> None:
    """Raises InUse if a process, or an entry that is not chosen, uses a cache of a chosen entry."""
    named = {one.directory for one in chosen}
    for one in chosen:
        if one.pid:
            remedy = "unmount it first; `cachefs cache ls` shows what is in use"
            raise InUse(f"a process uses it (pid {one.pid})", path=_shown(one), remedy=remedy)
        for other in found:
            shared = set(one.cache_dirs) & set(other.cache_dirs)
            if other.directory not in named and shared:
                cause = f"its cache {min(shared)} is also that of {_shown(other)}"
                raise InUse(cause, path=_shown(one), remedy="name both, or neither")


def _unused(found: Sequence[Entry], older_than: str | None) -> list[Entry]:
    """Returns the entries that no process uses, and that share no directory with a kept entry."""
    age_s = parse_duration(older_than) if older_than else 0.0
    before_s = time.time() - age_s
    if age_s < 0 or before_s < 0:  # -1 is "never": nothing is older
        raise BadConfig(f"bad time {older_than!r}", remedy="write it as 30d or 12h")
    kept_dirs = {
        path for one in found if one.pid or one.used_at_s > before_s for path in one.cache_dirs
    }
    return [
        one
        for one in found
        if not one.pid and one.used_at_s <= before_s and not kept_dirs & set(one.cache_dirs)
    ]


def _size(entry: Entry, names: bool) -> int:
    return entry.cached_bytes + (entry.names_bytes if names else 0)


def _shown(entry: Entry) -> str:
    return entry.source or entry.id


def _row(entry: Entry, now_s: float) -> list[str]:
    age_s = max(0.0, now_s - entry.used_at_s)
    used = "now" if age_s < MINUTE_S else f"{format_duration(age_s // MINUTE_S * MINUTE_S)} ago"
    return [
        entry.id,
        entry.source or "not known",
        format_size(entry.cached_bytes),
        format_size(entry.names_bytes),
        used,
        f"in use (pid {entry.pid})" if entry.pid else "unused",
        ", ".join(entry.cache_dirs) or entry.directory,
    ]


def _counted(entry: Entry, steps: Iterator[int], total_bytes: int) -> int:
    """Runs the steps, shows their progress on a terminal, and returns the sum."""
    done_bytes, due_s = 0, 0.0
    with _progress() as show:
        for step in steps:
            done_bytes += step
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + DRAW_S
                sizes = f"{format_size(done_bytes)} of {format_size(total_bytes)}"
                show(f"removing {_shown(entry)}: {sizes}")
    return done_bytes


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.text import Text

    with output.live() as live:
        yield lambda text: live.update(Text(text, no_wrap=True), refresh=True)


def _say(removed: Sequence[tuple[Entry, int]], dry_run: bool) -> None:
    for one, size in removed:
        verb = "would remove" if dry_run else "removed"
        click.echo(f"{verb} {format_size(size)} of {_shown(one)}")
    if not removed:
        click.echo("OK, nothing is unused")
