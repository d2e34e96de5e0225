"""`cachefs logs`: the logs of a mount's server and client."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Final, TextIO

import click

from cachefs.cli import output, settings
from cachefs.cli.session import find_target
from cachefs.core.addresses import is_cluster
from cachefs.core.config import Config
from cachefs.core.errors import NotFound
from cachefs.core.printable import printable
from cachefs.launcher.state import LOG_NAME, MountRecord, StateHome, mount_id

SERVER_LOG: Final = "server.log"
LINES: Final = 50
LOOK_S: Final = 0.5
MOST_BYTES: Final = 16 << 20  # of a log in memory
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@click.command("logs")
@click.argument("where", metavar="MOUNTPOINT")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until Ctrl-C.")
@click.option("-n", "--lines", default=LINES, show_default=True, help="Lines of each log.")
@settings.command_options("logs")
def command(where: str, follow: bool, lines: int, as_json: bool, chosen: Config) -> None:
    """Print the last lines of the logs of a mount's server and client. Each line is prefixed with
    the name of its log.

    \b
    cachefs logs -f /mnt/data
    """
    home = settings.state_home(chosen)
    found = files_of(find_target(where, home).record)
    if as_json:
        return output.print_json({name: str(path) for name, path in found.items()})
    for name, path in found.items():
        for line in last_lines(path, lines):
            click.echo(_shown(name, line))
    if follow:
        _follow(found)


def _shown(name: str, line: str) -> str:
    return f"{name}: {printable(line.expandtabs())}"


def files_of(record: MountRecord) -> dict[str, Path]:
    """Returns the log files of a mount, by the process that writes them."""
    home = _home_of(record)
    server = Path(record.socket).parent / LOG_NAME / SERVER_LOG
    client = home.log_path(record.source) / f"client-{mount_id(record.mountpoint)}.log"
    return {"server": server, "client": client}


def _home_of(record: MountRecord) -> StateHome:
    """Returns the state home of a mount's server; root may request another user's."""
    depth = 5 if is_cluster(record.source.url) else 3
    socket = Path(record.socket)
    above = [socket, *socket.parents]
    return StateHome(above[min(depth, len(above) - 1)])


def last_lines(path: Path, count: int) -> list[str]:
    """Returns the last lines of a log, if any, from its last `MOST_BYTES`. Raises as `_opened`."""
    file = _opened(path)
    if file is None:
        return []
    with file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))
        found = deque(file.read(MOST_BYTES).splitlines(), maxlen=max(0, count))
    return [*found]


def _follow(found: dict[str, Path]) -> None:
    """Prints new lines until the user interrupts, and reopens a log that was rotated."""
    tails = {name: new_lines(path) for name, path in found.items()}
    while True:
        for name, tail in tails.items():
            for line in next(tail):
                click.echo(_shown(name, line))
        time.sleep(LOOK_S)


def new_lines(path: Path) -> Generator[list[str], None, None]:
    """Yields at each step the complete lines written since the last step. Closing it closes the
    log."""
    file = _opened(path)
    if file is not None:
        file.seek(0, os.SEEK_END)
    rest = ""
    try:
        while True:
            if file is None or _is_replaced(file, path):
                if file is not None:
                    file.close()
                file = _opened(path)
            *whole, rest = (rest + (file.read(MOST_BYTES) if file is not None else "")).split("\n")
            yield whole
    finally:
        if file is not None:
            file.close()


def _opened(path: Path) -> TextIO | None:
    """Returns the log, or None if it does not exist. Raises NotFound for anything but a regular
    file: root reads in directories of other users. Raises OSError."""
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotFound("the log is not a file", path=str(path), remedy="remove it")
    return open(fd, encoding="utf-8", errors="replace", newline="")


def _is_replaced(file: TextIO, path: Path) -> bool:
    try:
        return os.fstat(file.fileno()).st_ino != path.stat().st_ino
    except FileNotFoundError:
        return False
