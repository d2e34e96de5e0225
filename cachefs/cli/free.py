"""`cachefs free`: drop cached bytes; names, and the objects at the origin, stay."""

from __future__ import annotations

from typing import Any

import click

from cachefs.cli import output, settings
from cachefs.cli.cluster_files import open_admin
from cachefs.cli.session import Target, attached, find_target
from cachefs.core import messages as m
from cachefs.core.addresses import is_cluster
from cachefs.core.units import format_size


@click.command("free")
@click.argument("path")
@settings.setting_flags("free")
@output.json_flag
@output.debug_flag
def command(path: str, as_json: bool, debug: bool, config_file: str | None, **flags: Any) -> int:
    """Drop what is cached of PATH and everything below it; of a cluster's path, on all its workers.
    Nothing is deleted at the origin. Exit code 3 if a worker did not answer."""
    home = settings.state_home(settings.load_settings(flags, config_file))
    if is_cluster(path) or is_cluster(find_target(path, home).record.source.url):
        freed, silent = _free_everywhere(path, flags, config_file)
    else:
        freed, silent = _free_here(find_target(path, home)), []
    if as_json:
        facts = {"files": freed.files, "bytes": freed.bytes, "busy_files": freed.busy_files}
        output.print_json(facts | {"silent": silent})
    else:
        click.echo(_line(freed))
    return output.warn_of_silent(silent)


def _free_here(target: Target) -> m.Freed:
    with attached(target.record) as session:
        return session.call(m.Free(session.namespace, target.in_namespace), m.Freed)


def _free_everywhere(
    path: str, flags: dict[str, Any], config_file: str | None
) -> tuple[m.Freed, list[str]]:
    """Frees on all workers; returns what was freed, and the workers that did not answer. A file
    that several workers have counts once for each."""
    master, inside = open_admin(path, flags, config_file)
    with master:
        freed = master.free(inside)
    return m.Freed(freed.files, freed.bytes, freed.busy_files), freed.silent


def _line(freed: m.Freed) -> str:
    files = "1 file" if freed.files == 1 else f"{freed.files} files"
    line = f"freed {format_size(freed.bytes)} of {files}"
    if freed.busy_files:
        line += f"; {freed.busy_files} still open, their bytes go with the last close"
    return line
