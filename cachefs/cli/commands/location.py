"""`cachefs location`: the owners of a file's blocks, and the workers that have them cached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from cachefs.cli import clusters, output, settings
from cachefs.cli.cluster_files import SHOWN_ID
from cachefs.cli.paths import find_in_cluster
from cachefs.client.admin import AdminClient, Values
from cachefs.core import admin as a
from cachefs.core.addresses import address_of
from cachefs.core.config import Config
from cachefs.core.errors import AccessDenied
from cachefs.core.units import format_size

_HEAD: Final = ["PATH", "BLOCK", "SIZE", "OWNER", "CACHED AT"]


@click.command("location")
@click.argument("path")
@settings.command_options("location")
def command(path: str, as_json: bool, chosen: Config) -> int:
    """Show the owners of every block (256 MiB) of PATH, or of the known files below it, and the
    workers that have it cached, with the share. Exit code 3 if a worker did not answer.

    \b
    cachefs location /mnt/imagenet/train.tar
    cachefs location cachefs://master:19998/imagenet
    """
    url, inside, chosen = find_in_cluster(path, chosen)
    with clusters.admin_at(url, chosen) as master:
        places = Places(master, inside)
        if as_json:
            output.print_json_array(row for rows in places.rows() for row in rows)
        else:
            _print(places)
    return output.warn_no_answer(places.silent)


def _pages(master: AdminClient, path: bytes) -> Iterator[a.Locations]:
    query: Values = {"path": a.text_of(path), "limit": a.DEFAULT_LIMIT}
    return master.pages("/locations", a.Locations, query)


def _addresses(master: AdminClient) -> dict[str, str]:
    """Returns the address of each worker; none for a token that is limited to a path."""
    try:
        return {row.id: address_of(row.url) for row in master.workers().rows}
    except AccessDenied:
        return {}


class Places:
    """The blocks of the files that a master lists, page by page. `epoch`, `moving` and `silent` are
    those of the last page that was read."""

    def __init__(self, master: AdminClient, path: bytes) -> None:
        """Fetches only the addresses of the workers."""
        self.epoch = 0
        self.moving = False
        self.silent: list[str] = []
        self._pages = _pages(master, path)
        self._at = _addresses(master)

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """Yields the blocks of each page."""
        for page in self._pages:
            self.epoch, self.moving = page.epoch, page.moving
            self.silent += [line for line in page.silent if line not in self.silent]
            yield [self._row(file, block) for file in page.items for block in file.blocks]

    def _row(self, file: a.FileAt, block: a.BlockAt) -> dict[str, Any]:
        """Returns one block as a JSON document."""
        having = sorted(block.cached, key=lambda one: (one.worker not in block.owners, one.worker))
        addresses = [self._at.get(owner, "") for owner in block.owners]
        return {
            "path": "/" + output.text_of(a.bytes_of(file.path)),
            "block": block.block,
            "size_bytes": block.size_bytes,
            "pages": block.pages,
            "owner": block.owners[0] if block.owners else "",
            "address": addresses[0] if addresses else "",
            "owners": block.owners,
            "addresses": addresses,
            "cached": [
                {"worker": one.worker, "address": self._at.get(one.worker, ""), "pages": one.pages}
                for one in having
            ],
        }


def _print(places: Places) -> None:
    head: list[list[str]] = [_HEAD]
    for rows in places.rows():
        for line in output.columns([*head, *(_line(row) for row in rows)], right=(1, 2)):
            click.echo(line)
        head = []
    moving = ", data is moving to its new places" if places.moving else ""
    click.echo(f"epoch {places.epoch}{moving}")


def _line(row: dict[str, Any]) -> list[str]:
    cached = [
        f"{_who(one['worker'], one['address'])} {output.percent_of(one['pages'], row['pages'])}"
        for one in row["cached"]
    ]
    owners = [_who(*one) for one in zip(row["owners"], row["addresses"], strict=True)]
    size = format_size(row["size_bytes"])
    whose = ", ".join(owners) or "none"
    return [row["path"], str(row["block"]), size, whose, ", ".join(cached) or "-"]


def _who(worker: str, address: str) -> str:
    return f"{worker[:SHOWN_ID]} ({address})" if address else worker[:SHOWN_ID]
