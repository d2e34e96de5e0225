"""`cachefs free`: frees cached data; names, and the objects at the origin, stay."""

from __future__ import annotations

import click

from cachefs.cli import clusters, output, paths, settings
from cachefs.cli.paths import InCluster
from cachefs.cli.session import Target, attached
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.units import format_size


@click.command("free")
@click.argument("path")
@settings.command_options("free")
def command(path: str, as_json: bool, chosen: Config) -> int:
    """Free the cached data of PATH and everything below it; in a cluster, on all workers. Nothing
    is deleted at the origin. Exit code 3 if a worker did not answer.

    \b
    cachefs free /mnt/data/train
    cachefs free cachefs://master:19998/imagenet
    """
    place = paths.find(path, chosen)
    shared = paths.in_cluster(place, chosen)
    if shared is not None:
        freed, silent = _free_everywhere(shared)
    else:
        assert isinstance(place, Target), "not in a cluster"
        freed, silent = _free_here(place), []
    if as_json:
        facts = {"files": freed.files, "bytes": freed.bytes, "busy_files": freed.busy_files}
        output.print_json(facts | {"silent": silent})
    else:
        click.echo(_line(freed))
    return output.warn_no_answer(silent)


def _free_here(target: Target) -> m.Freed:
    with attached(target.record) as session:
        return session.call(m.Free(session.namespace, target.in_namespace), m.Freed)


def _free_everywhere(place: InCluster) -> tuple[m.Freed, list[str]]:
    """Frees on all workers; returns the freed totals and the workers that did not answer. A file
    that several workers have cached counts once for each."""
    with clusters.admin_at(place.url, place.chosen) as master:
        freed = master.free(place.path)
    return m.Freed(freed.files, freed.bytes, freed.busy_files), freed.silent


def _line(freed: m.Freed) -> str:
    files = "1 file" if freed.files == 1 else f"{freed.files} files"
    line = f"freed {format_size(freed.bytes)} of {files}"
    if freed.busy_files:
        line += f"; {freed.busy_files} still open, freed at the last close"
    return line
