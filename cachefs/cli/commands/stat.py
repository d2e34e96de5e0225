"""`cachefs stat`: the attributes, version and cached bytes of one path."""

from __future__ import annotations

from typing import Any

import click

from cachefs.cli import listing, names, output, settings, view_calls
from cachefs.cli.commands.ls import shown
from cachefs.cli.session import Target
from cachefs.core.config import Config
from cachefs.core.model import ContentId, Inode, Kind, NamespaceId
from cachefs.core.units import format_size
from cachefs.launcher.state import MountRecord


@click.command("stat")
@click.argument("path")
@settings.command_options("stat")
def command(path: str, as_json: bool, chosen: Config) -> int:
    """Show everything known about PATH: attributes, version, and the cached bytes: here or, in a
    cluster, on any worker. A path of a cluster needs no mount. Exit code 3 if a worker did not
    answer.

    \b
    cachefs stat /mnt/data/train/0001.jpg
    cachefs stat cachefs://master:19998/imagenet/train.tar
    """
    with names.opened(path, chosen) as (server, target):
        inode = server.resolve(target)
        row = listing.with_cached(server, [listing.Row(target.path, inode)])[0]
        facts = listing.document(row, target.record, shown(target, target.path))
        facts |= _more(target, server.namespace, inode)
        facts |= view_calls.facts_at(server, target)
        code = server.warn_of_silent()
    if as_json:
        output.print_json(facts)
        return code
    for line in output.columns(_rows(facts, row, target.record)):
        click.echo(line)
    return code


def _more(target: Target, namespace: NamespaceId, inode: Inode) -> dict[str, Any]:
    url = target.record.source.url
    source = f"{url}/{output.text_of(target.path)}" if target.path else url
    facts: dict[str, Any] = {"source": source, "version": inode.version}
    if inode.kind is Kind.FILE:
        facts["content_id"] = ContentId.of(namespace, inode).name
    return facts


def _rows(facts: dict[str, Any], row: listing.Row, record: MountRecord) -> list[list[str]]:
    mode, owner, group, _, mtime, share, _ = listing.fields(row, record, "")
    rows = {
        "path": facts["path"],
        "source": facts["source"],
        "type": facts["type"],
        "size": f"{row.inode.size} ({format_size(row.inode.size)})",
        "cached": f"{format_size(row.cached_bytes)} ({share})" if row.cached_bytes >= 0 else share,
        "mode": f"{facts['mode']} {mode}",
        "owner": f"{owner}:{group}",
        "mtime": mtime,
        "ino": str(facts["ino"]),
        "version": str(facts["version"]),
        "etag": facts["etag"] or "-",
        "content": facts.get("content_id", "-"),
    }
    if "view" in facts:
        rows["view"] = facts["view"]
    if "target" in facts:
        rows["target"] = facts["target"]
    if row.inode.kind is not Kind.FILE:
        for name in ("cached", "content", "etag", "size"):
            del rows[name]
    return [[f"{name}:", value] for name, value in rows.items()]
