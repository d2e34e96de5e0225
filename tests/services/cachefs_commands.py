"""Runs command lines of `cachefs` in forks of a process that has imported their code already:
`python -I cachefs_commands.py FD`. An import takes a quarter of a second of CPU time, and the tests
run more than a thousand commands.

FD is a socket of requests (`forks.py`): JSON (`argv`, `env`, `cwd`) with the command's standard
output and error. The servers and clients that these commands start in the background are forks too
(`cachefs_servers.py`), unless the environment of a command has the variable `EXECUTE`.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.services import cachefs_servers, forks

sys.path.pop()

from cachefs.cli import app, main


def become(request: dict[str, Any], fds: list[int]) -> list[str]:
    """Makes this fork what a process is that has just been started; its arguments."""
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in ((null, 0), (fds[0], 1), (fds[1], 2)):
        os.dup2(fd, standard)
    for fd in (null, *fds):
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [*request["argv"]]
    return sys.argv[1:]


def run() -> int:
    """Serves the requests; returns in each fork the exit code of its command."""
    forks.import_all(f"cachefs.cli.commands.{module}" for module, _ in app.COMMANDS.values())
    commands = forks.Forks(socket.socket(fileno=int(sys.argv[1])))
    servers = cachefs_servers.Servers(commands)
    arguments = become(*commands.serve())
    if os.environ.pop(cachefs_servers.EXECUTE, None) is None:
        servers.replace_starts()
    return main.main(arguments)


if __name__ == "__main__":
    sys.exit(run())
