"""`cachefs pin`: protects a file or a tree from eviction, and loads what is missing."""

from __future__ import annotations

import click

from cachefs.cli import job_progress, output, settings
from cachefs.cli.commands.load import submit
from cachefs.cli.job_servers import Finder, Place
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.globs import literal
from cachefs.core.jobs import JobSpec
from cachefs.core.policies import Policy


@click.command("pin")
@click.argument("path")
@click.option("--wait", is_flag=True, help="Wait until all of it is cached; exit code 1 if not.")
@click.option("--no-load", is_flag=True, help="Load nothing; files stay once they are read.")
@settings.command_options("pin")
def command(path: str, wait: bool, no_load: bool, as_json: bool, chosen: Config) -> int:
    """Never evict the files at or below PATH, and load what is missing.

    \b
    cachefs pin /mnt/data/val --wait
    cachefs pin cachefs://master:19998/imagenet/val

    Returns when no worker can evict it any more: at once, or within 10 s if an eviction was in
    progress. A job loads the rest (`cachefs jobs`). If it does not fit, the job fails with the
    sizes, and what fits stays pinned."""
    with Finder(chosen) as finder:
        place, inside = finder.find(path)
        inside = inside.strip(b"/")
        place.call(m.SetPolicy(place.namespace, inside, Policy(pin=True)), m.PolicySet)
        if no_load:
            return _say_pinned(place, inside, None, as_json)
        submitted = submit(place, JobSpec((), hold_s=0.0), [literal(inside)])
        if wait:
            return _wait(place, inside, submitted.job, as_json)
        return _say_pinned(place, inside, submitted.job, as_json)


def _wait(place: Place, path: bytes, job: int, as_json: bool) -> int:
    code = job_progress.show_until_end(place, job, as_json)
    if code:
        click.echo(f"cachefs: {place.shown(path)} is pinned, and not all of it is cached", err=True)
    return code


def _say_pinned(place: Place, path: bytes, job: int | None, as_json: bool) -> int:
    shown = place.shown(path)
    if as_json:
        output.print_json({"path": shown, "pin": True, "job": job, "where": place.where})
    elif job is None:
        click.echo(f"OK, {shown} is pinned: what is cached of it stays")
    else:
        hint = f"`cachefs jobs show {job} {place.named}` shows it"
        click.echo(f"OK, {shown} is pinned; job {job} loads what is missing: {hint}")
    return 0
