"""`cachefs logs`: the log of a mount's server and of its client."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, TextIO

import click

from cachefs.cli import output, settings
from cachefs.cli.session import find_target
from cachefs.core.addresses import is_cluster
from cachefs.launcher.state import LOG_NAME, MountRecord, StateHome, mount_id

SERVER_LOG: Final = "server.log"
LINES: Final = 50
LOOK_S: Final = 0.5


@click.command("logs")
@click.argument("where", metavar="MOUNTPOINT")
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("-n", "--lines", default=LINES, show_default=True, help="Lines of each log.")
@settings.setting_flags("logs")
@output.json_flag
@output.debug_flag
def command(
    where: str,
    follow: bool,
    lines: int,
    as_json: bool,
    debug: bool,
    config_file: str | None,
    **flags: Any,
) -> None:
    """The last lines of the logs of a mount: its server's and its client's. Each line is headed by
    the log that it is in.

    \b
    cachefs logs -f /mnt/data
    """
    home = settings.state_home(settings.load_settings(flags, config_file))
    found = files_of(find_target(where, home).record)
    if as_json:
        return output.print_json({name: str(path) for name, path in found.items()})
    for name, path in found.items():
        for line in last_lines(path, lines):
            click.echo(f"{name}: {line}")
    if follow:
        _follow(found)


def files_of(record: MountRecord) -> dict[str, Path]:
    """Returns the log files of a mount, by the process that writes them."""
    home = _home_of(record)
    server = Path(record.socket).parent / LOG_NAME / SERVER_LOG
    client = home.log_path(record.source) / f"client-{mount_id(record.mountpoint)}.log"
    return {"server": server, "client": client}


def _home_of(record: MountRecord) -> StateHome:
    """Returns the state home that a mount's server listens in; root may ask for another user's."""
    depth = 4 if is_cluster(record.source.url) else 2
    return StateHome(Path(record.socket).parents[depth])


def last_lines(path: Path, count: int) -> list[str]:
    """Returns the last lines of a log; none of one that is not there."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=max(0, count))]
    except FileNotFoundError:
        return []


def _follow(found: dict[str, Path]) -> None:
    """Prints new lines until the user interrupts; a log that was rotated is opened anew."""
    tails = {name: new_lines(path) for name, path in found.items()}
    while True:
        for name, tail in tails.items():
            for line in next(tail):
                click.echo(f"{name}: {line}")
        time.sleep(LOOK_S)


def new_lines(path: Path) -> Generator[list[str], None, None]:
    """Yields, at each step, the whole lines that came since the one before; first none. Closing the
    generator closes the log."""
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
            *whole, rest = (rest + (file.read() if file is not None else "")).split("\n")
            yield whole
    finally:
        if file is not None:
            file.close()


def _opened(path: Path) -> TextIO | None:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _is_replaced(file: TextIO, path: Path) -> bool:
    try:
        return os.fstat(file.fileno()).st_ino != path.stat().st_ino
    except FileNotFoundError:
        return False
