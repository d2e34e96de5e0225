"""`cachefs view`: where the cached files of a directory are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import click

from cachefs.cli import listing, output, settings, view_calls
from cachefs.cli.session import Session, Target
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig
from cachefs.core.model import ContentId, Kind


@click.command("view")
@click.argument("path")
@click.option("--print", "printed", is_flag=True, help="Print each file and where it is cached.")
@settings.command_options("view")
def command(path: str, printed: bool, as_json: bool, chosen: Config) -> None:
    """Print the files at or below PATH with their complete cache files, which can be read without
    the mount: of a mount without root rights, too. Only the user of the cache may read them. A
    cache file may be evicted at any time unless it is pinned.

    \b
    cachefs view /mnt/data/train --print
    """
    if not printed:
        raise BadConfig("--print is missing", remedy=f"cachefs view {path} --print")
    with view_calls.opened(path, chosen) as (session, target):
        for name, cached in _files(session, target):
            if as_json:
                click.echo(json.dumps({"path": name, "cached_at": cached or None}))
            else:
                click.echo(f"{name}\t{cached or '-'}")


def _files(session: Session, target: Target) -> Iterator[tuple[str, str]]:
    """Yields each file and the path of its published cache file, "" if it is not complete."""
    tiers = _tiers(session)
    inode = session.resolve(target)
    single = [[listing.Row(target.path, inode)]]
    is_directory = inode.kind is Kind.DIRECTORY
    for page in listing.tree(session, inode, target.path) if is_directory else single:
        for row in page:
            if row.inode.kind is Kind.FILE:
                content = ContentId.name_of(session.namespace, row.inode)
                places = (os.path.join(tier, "pub", content) for tier in tiers)
                where = os.path.join(os.fsencode(target.record.mountpoint), row.path)
                yield output.text_of(where), next(filter(os.path.exists, places), "")


def _tiers(session: Session) -> list[str]:
    status = session.call(m.Status(), m.StatusReply).status
    return [tier["path"] for tier in status.get("cache", {}).get("tiers", [])]
