"""`cachefs order`: announces the order in which files of a mount will be opened."""

from __future__ import annotations

import array
import os
import time
from collections.abc import Iterable
from typing import BinaryIO, Final

import click

from cachefs.cli import output
from cachefs.cli.directory_argument import Directory
from cachefs.client.directory_orders import DirectoryOrders
from cachefs.core.errors import NotFound
from cachefs.core.mountinfo import device_name, read_mounts

POLL_S: Final = 1.0
NATIVE: Final = 0  # no inode has this number


@click.command("order")
@click.argument("path", type=Directory())
@click.option("--files-from", required=True, type=click.File("rb"), metavar="FILE",
              help="The files, one a line, below PATH; - for standard input.")  # fmt: skip
@click.option("--name", default="order", help="Replaces the order with the same name.")
@click.option("--follow", is_flag=True, help="Show how far it is, until it has ended.")
@output.json_flag
@output.debug_flag
def command(path: str, files_from: BinaryIO, name: str, follow: bool, as_json: bool) -> int:
    """Announce in which order the files of a mount below PATH will be opened.

    \b
    cachefs order /mnt/data/train --files-from epoch1.txt

    The node prefetches small files in this order, a bounded window ahead of the readers. The order
    ends when its files were opened, after 10 minutes without an open, and with the mount."""
    orders = DirectoryOrders(path)
    inos = _inos_of(path, files_from)
    is_native = NATIVE in inos  # complete on this node
    if is_native:
        inos = array.array("Q", (ino for ino in inos if ino != NATIVE))
    is_announced = bool(inos) or not is_native
    if is_announced:
        orders.announce(name, inos)
    if follow and is_announced:
        _follow(orders, name, as_json)
    if as_json:
        output.print_json_line({"path": path, "name": name, "files": len(inos)})
    elif not is_announced:
        click.echo("OK, all files are native: none needs an order")
    elif not follow:
        click.echo(f"OK, {len(inos):,} files are announced as {name!r}")
    return 0


def _inos_of(path: str, lines: Iterable[bytes]) -> array.array[int]:
    """Returns the inode numbers of the files, in their order; `NATIVE` for those that the kernel
    alone shows, whose numbers are of the cache's file system. Lists each of their directories once.
    Raises NotFound for the first name that does not exist."""
    base, listed, inos = os.fsencode(path), dict[bytes, dict[bytes, int]](), array.array("Q")
    mounts = read_mounts()
    native = {mount.device for mount in (*mounts, *mounts.covers) if mount.shows_view}
    for line in lines:
        name = line.rstrip(b"\n")
        if not name:
            continue
        folder, _, last = os.path.join(base, name).rpartition(b"/")
        if folder not in listed:
            listed[folder] = _listing(folder, native)
        ino = listed[folder].get(last)
        if ino is None:
            raise NotFound(
                "no such file, so nothing was announced",
                path=os.fsdecode(os.path.join(folder, last)),
                remedy=f"write names below {path}, one a line",
            )
        inos.append(ino)
    return inos


def _listing(folder: bytes, native: set[str]) -> dict[bytes, int]:
    """`native`: the devices of views."""
    try:
        with os.scandir(folder) as entries:
            if device_name(os.stat(folder).st_dev) in native:
                return {entry.name: NATIVE for entry in entries}
            return {entry.name: entry.inode() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _follow(orders: DirectoryOrders, name: str, as_json: bool) -> None:
    """Shows the state of the order about once a second, until it has ended."""
    while True:
        try:
            state = orders.state(name)
        except NotFound:
            return
        if as_json:
            output.print_json_line(state._asdict())
        else:
            click.echo(
                f"{state.position:,} of {state.total:,} opened, "
                f"{state.ahead_files:,} ahead, {state.late:,} opened before their prefetch"
            )
        time.sleep(POLL_S)
