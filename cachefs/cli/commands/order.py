"""`cachefs order`: announces the order in which files of a mount will be opened."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import time
from collections.abc import Iterable
from typing import Any, BinaryIO, Final

import click

from cachefs.cli import output
from cachefs.core.errors import BadConfig, NotFound, Unsupported
from cachefs.core.order_ioctl import PIECE, STATE, ListPiece, ListState, pieces

POLL_S: Final = 1.0


@click.command("order")
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option("--files-from", required=True, type=click.File("rb"), metavar="FILE",
              help="The files, one a line, below PATH; - for standard input.")  # fmt: skip
@click.option("--name", default="order", help="Replaces the order with the same name.")
@click.option("--follow", is_flag=True, help="Show how far it is, until it has ended.")
@output.json_flag
@output.debug_flag
def command(
    path: str, files_from: BinaryIO, name: str, follow: bool, as_json: bool, debug: bool
) -> int:
    """Announce in which order the files of a mount below PATH will be opened.

    \b
    cachefs order /mnt/data/train --files-from epoch1.txt

    The node prefetches small files in this order, a bounded window ahead of the readers. The order
    ends when its files were opened, after 10 minutes without an open, and with the mount."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        inos = _inos_of(path, files_from)
        for piece in pieces(name, inos):
            _call(directory, PIECE, piece, path)
        if follow:
            _follow(directory, name, path, as_json)
    finally:
        os.close(directory)
    if as_json:
        output.print_json({"path": path, "name": name, "files": len(inos)})
    elif not follow:
        click.echo(f"OK, {len(inos):,} files are announced as {name!r}")
    return 0


def _inos_of(path: str, lines: Iterable[bytes]) -> array.array[int]:
    """Returns the inode numbers of the files, in their order. Lists each of their directories once.
    Raises NotFound for the first name that does not exist."""
    base, listed, inos = os.fsencode(path), dict[bytes, dict[bytes, int]](), array.array("Q")
    for line in lines:
        name = line.rstrip(b"\n")
        if not name:
            continue
        folder, _, last = os.path.join(base, name).rpartition(b"/")
        if folder not in listed:
            listed[folder] = _listing(folder)
        ino = listed[folder].get(last)
        if ino is None:
            raise NotFound(
                "no such file, so nothing was announced",
                path=os.fsdecode(os.path.join(folder, last)),
                remedy=f"write names below {path}, one a line",
            )
        inos.append(ino)
    return inos


def _listing(folder: bytes) -> dict[bytes, int]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.inode() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _call(directory: int, command: int, argument: bytearray, path: str) -> None:
    """Raises the typed errors of the ioctl."""
    try:
        fcntl.ioctl(directory, command, argument)
    except OSError as err:
        if err.errno == errno.ENOTTY:
            raise Unsupported(
                "this directory takes no announcements of orders",
                path=path,
                remedy="mount it with `cachefs mount` of this version and --transport kernel",
            ) from err
        if err.errno == errno.EINVAL:
            raise BadConfig(
                "the order was refused: the mount has too many, or it was interrupted",
                path=path,
                remedy="announce it again from its start",
            ) from err
        raise


def _follow(directory: int, name: str, path: str, as_json: bool) -> None:
    """Shows the state of the order about once a second, until it has ended."""
    while True:
        buffer = bytearray(ListPiece(name).header())
        try:
            _call(directory, STATE, buffer, path)
        except FileNotFoundError:
            return
        state: dict[str, Any] = ListState.decode(buffer)._asdict()
        if as_json:
            output.print_json(state)
        else:
            click.echo(
                f"{state['position']:,} of {state['total']:,} opened, "
                f"{state['ahead_files']:,} ahead, {state['late']:,} opened before their prefetch"
            )
        time.sleep(POLL_S)
