"""`cachefs du`: the size of a tree, and how much of it is cached."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
import msgspec

from cachefs.cli import clusters, listing, output, settings, view_calls
from cachefs.cli.paths import InCluster, find, in_cluster
from cachefs.cli.session import Target, attached
from cachefs.core.config import Config
from cachefs.core.model import Kind
from cachefs.core.units import format_size


class Sum(msgspec.Struct):
    """The totals below a path. `cached_bytes` are readable without the origin. Contents of the
    `unlisted_directories`, which were never listed, are not counted. `silent`: the workers that did
    not answer, each with the cause."""

    files: int = 0
    size_bytes: int = 0
    cached_bytes: int = 0
    unlisted_directories: int = 0
    silent: list[str] = []
    view: str = ""  # the native view that shows the tree

    def add(self, size_bytes: int, cached_bytes: int) -> None:
        self.files += 1
        self.size_bytes += size_bytes
        self.cached_bytes += cached_bytes


@click.command("du")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@settings.command_options("du")
def command(paths: tuple[str, ...], as_json: bool, chosen: Config) -> int:
    """Show the size of everything at or below each PATH, and how much of it is cached: here or, in
    a cluster, on any worker. In a cluster only names that the master knows are counted. Exit code 3
    if a worker did not answer.

    \b
    cachefs du /mnt/data/train /mnt/data/other
    cachefs du cachefs://master:19998/imagenet
    """
    sums = [(output.text_of(os.fsencode(path)), _sum(path, chosen)) for path in paths]
    if as_json:
        output.print_json([_document(path, found) for path, found in sums])
    else:
        _print(sums)
    silent = dict.fromkeys(line for _, found in sums for line in found.silent)
    return output.warn_no_answer([*silent])


def _document(path: str, found: Sum) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": path, **msgspec.to_builtins(found)}
    if not found.view:
        del facts["view"]
    return facts


def _print(sums: list[tuple[str, Sum]]) -> None:
    for line in output.columns([_row(*one) for one in sums], right=(0, 1, 2, 3)):
        click.echo(line)
    for path, found in sums:
        if found.view:
            click.echo(f"{path}: view: {found.view}")
        if found.unlisted_directories:
            click.echo(_unlisted(path, found.unlisted_directories), err=True)


def _unlisted(path: str, count: int) -> str:
    what = "1 directory was" if count == 1 else f"{count} directories were"
    rest = "their contents are not counted"
    remedy = f"list all: cachefs sync -R {shlex.quote(path)}"
    return f"cachefs: {path}: {what} never listed, {rest}; {remedy}"


def _row(path: str, found: Sum) -> list[str]:
    share = output.percent_of(found.cached_bytes, found.size_bytes)
    if found.unlisted_directories and not found.size_bytes:
        share = "-"
    files = "1 file" if found.files == 1 else f"{found.files} files"
    size, cached = format_size(found.size_bytes), format_size(found.cached_bytes)
    return [size, f"{cached} cached", share, files, path]


def _sum(path: str, chosen: Config) -> Sum:
    place = find(path, chosen)
    shared = in_cluster(place, chosen)
    if shared is not None:
        return _sum_everywhere(shared)
    assert isinstance(place, Target), "not in a cluster"
    return _sum_here(place)


def _sum_here(target: Target) -> Sum:
    total = Sum()
    with attached(target.record) as session:
        inode = session.resolve(target)
        total.view = view_calls.facts_at(session, target).get("view", "")
        single = [[listing.Row(target.path, inode)]]
        is_directory = inode.kind is Kind.DIRECTORY
        for page in listing.tree(session, inode, target.path) if is_directory else single:
            for row in listing.with_cached(session, page):
                if row.inode.kind is Kind.FILE:
                    total.add(row.inode.size, row.cached_bytes)
    return total


def _sum_everywhere(place: InCluster) -> Sum:
    with clusters.admin_at(place.url, place.chosen) as master:
        found = master.usage(place.path)
    return Sum(
        found.files,
        found.size_bytes,
        found.cached_bytes,
        found.unlisted_directories,
        found.silent,
    )
