"""`cachefs location`: who owns the blocks of a file, and who has how much of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import click

from cachefs.cli import output, settings
from cachefs.cli.cluster_files import SHOWN_ID, Block, Cluster, File, blocks_of, open_cluster
from cachefs.core.addresses import address_of
from cachefs.core.model import PAGE_BYTES
from cachefs.core.units import format_size

_HEAD: Final = ["PATH", "BLOCK", "SIZE", "OWNER", "CACHED AT"]


@click.command("location")
@click.argument("path")
@settings.setting_flags("location")
@output.json_flag
@output.debug_flag
def command(path: str, as_json: bool, debug: bool, config_file: str | None, **flags: Any) -> int:
    """For every block (256 MiB) of PATH, or of the files below it that are known: the worker that
    owns it (or several, by policy), and those that have it cached, with how much of it. Exit code 3
    if a worker did not answer.

    \b
    cachefs location /mnt/imagenet/train.tar
    cachefs location cachefs://master:19998/imagenet
    """
    cluster, inside = open_cluster(path, flags, config_file)
    with cluster:
        pages = _pages(cluster, inside)
        _print_json(pages) if as_json else _print(cluster, pages)
        return cluster.warn_of_silent()


def _pages(cluster: Cluster, path: bytes) -> Iterator[list[dict[str, Any]]]:
    for files in cluster.files(path):
        found = zip(files, cluster.have(files), strict=True)
        yield [
            row(cluster, file, block, bits)
            for file, bits in found
            for block in blocks_of(file.inode)
        ]


def row(cluster: Cluster, file: File, block: Block, bits: dict[str, int]) -> dict[str, Any]:
    """One block, for programs."""
    start = block.first * PAGE_BYTES
    size_bytes = min(file.inode.size, block.end * PAGE_BYTES) - start
    owners = cluster.owners(file, block.number)
    counts = {worker: block.count(pages) for worker, pages in bits.items()}
    having = sorted(counts, key=lambda worker: (worker not in owners, worker))
    cached = [
        {"worker": one, "address": address_of(cluster.rows[one].url), "pages": counts[one]}
        for one in having
        if counts[one]
    ]
    return {
        "path": "/" + output.text_of(file.path),
        "block": block.number,
        "size_bytes": size_bytes,
        "pages": block.pages,
        "owner": owners[0] if owners else "",
        "address": _address(cluster, owners[0]) if owners else "",
        "owners": owners,
        "addresses": [_address(cluster, owner) for owner in owners],
        "cached": cached,
    }


def _address(cluster: Cluster, worker: str) -> str:
    return address_of(cluster.rows[worker].url) if worker in cluster.rows else ""


def _print(cluster: Cluster, pages: Iterator[list[dict[str, Any]]]) -> None:
    head: list[list[str]] = [_HEAD]
    for rows in pages:
        for line in output.columns([*head, *(_line(row) for row in rows)], right=(1, 2)):
            click.echo(line)
        head = []
    moving = ", data is moving to its new places" if cluster.view.before else ""
    click.echo(f"epoch {cluster.view.epoch}{moving}")


def _line(row: dict[str, Any]) -> list[str]:
    cached = [
        f"{_who(one['worker'], one['address'])} {output.percent_of(one['pages'], row['pages'])}"
        for one in row["cached"]
    ]
    owners = [_who(*one) for one in zip(row["owners"], row["addresses"], strict=True)]
    size = format_size(row["size_bytes"])
    whose = ", ".join(owners) or "nobody"
    return [row["path"], str(row["block"]), size, whose, ", ".join(cached) or "-"]


def _who(worker: str, address: str) -> str:
    return f"{worker[:SHOWN_ID]} ({address})" if address else worker[:SHOWN_ID]


def _print_json(pages: Iterator[list[dict[str, Any]]]) -> None:
    separator = "["
    for rows in pages:
        for row in rows:
            click.echo(f"{separator}\n{json.dumps(row)}", nl=False)
            separator = ","
    click.echo("[]" if separator == "[" else "\n]")
