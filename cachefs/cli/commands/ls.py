"""`cachefs ls`: names; with -l also attributes and the cached share of each file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import click

from cachefs.cli import listing, names, output, settings, view_calls
from cachefs.cli.listing import Row
from cachefs.cli.names import Names
from cachefs.cli.session import Target
from cachefs.core.config import Config
from cachefs.core.model import Inode, Kind


@click.command("ls")
@click.argument("path", default=".")
@click.option("-l", "long", is_flag=True, help="Mode, owner, group, size, mtime, cached %, path.")
@click.option("-R", "recursive", is_flag=True, help="Everything below.")
@settings.command_options("ls")
def command(path: str, long: bool, recursive: bool, as_json: bool, chosen: Config) -> int:
    """List PATH: below a mount point, the URL of a mounted source, or a path of a cluster, which
    needs no mount. Exit code 3 if a worker did not report what it has cached.

    \b
    cachefs ls -l /mnt/data/train
    cachefs ls -R cachefs://master:19998/imagenet
    """
    with names.opened(path, chosen) as (server, target):
        pages = _pages(server, target, server.resolve(target), recursive)
        if long or as_json:
            pages = (listing.with_cached(server, page) for page in pages)
        if as_json:
            output.print_json_array(
                listing.document(row, target.record, shown(target, row.path))
                for page in pages
                for row in page
            )
        else:
            if long:
                _print_view(server, target)
            _print(pages, target, long=long, full=long or recursive)
        return server.warn_of_silent()


def _print_view(server: Names, target: Target) -> None:
    text = view_calls.facts_at(server, target).get("view")
    if text:
        click.echo(f"view: {text}", err=True)


def _pages(server: Names, target: Target, inode: Inode, recursive: bool) -> Iterator[list[Row]]:
    if inode.kind is not Kind.DIRECTORY:
        return iter([[Row(target.path, inode)]])
    walk = listing.tree if recursive else listing.children
    return walk(server, inode, target.path)


def shown(target: Target, path: bytes) -> str:
    """Returns a path of the namespace as it is seen through the mount."""
    root = os.fsencode(target.record.mountpoint)
    return output.text_of(os.path.join(root, path) if path else root)


def _print(pages: Iterable[list[Row]], target: Target, *, long: bool, full: bool) -> None:
    for page in pages:
        if long:
            rows = [listing.fields(row, target.record, shown(target, row.path)) for row in page]
            lines = output.columns(rows, right=(3, 5))
        else:
            lines = [_name(row, target, full) for row in page]
        if lines:
            click.echo("\n".join(lines))


def _name(row: Row, target: Target, full: bool) -> str:
    name = shown(target, row.path) if full else output.text_of(os.path.basename(row.path))
    return name + "/" if row.inode.kind is Kind.DIRECTORY else name
