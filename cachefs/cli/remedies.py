"""Completes the commands in remedies, so that they work when pasted on this machine. A master does
not know the URL and the flags by which a user reaches it."""

from __future__ import annotations

import re
import shlex
from typing import Final

import msgspec

from cachefs.cli import settings
from cachefs.core.addresses import address_of
from cachefs.core.config import Config
from cachefs.core.health import HealthProblem
from cachefs.launcher import local

_OF_MASTER: Final = re.compile(r"cachefs (?:jobs|quota|workers)\b[^;,]*")
_START: Final = "cachefs master"  # the end of a remedy


def completed(problem: HealthProblem, url: str, chosen: Config) -> HealthProblem:
    """Returns the problem with commands that reach the master at a URL, by --master and the
    connection flags that were given. A master of `cachefs up` is started by that command."""
    flags = " ".join(["--master", shlex.quote(url), *settings.connection_flags(chosen)])
    remedy = _OF_MASTER.sub(lambda found: f"{found[0].rstrip()} {flags}", problem.remedy)
    if problem.code == "MASTER_AWAY" and (command := _up(url, chosen)):
        remedy = f"start it: {command}"
    return msgspec.structs.replace(problem, remedy=remedy)


def _up(url: str, chosen: Config) -> str:
    """Returns the command that starts an ended master of `cachefs up`; "" for any other master."""
    home = settings.state_home(chosen)
    cluster = local.read(home)
    if cluster is None or address_of(cluster.master) != address_of(url):
        return ""
    if cluster.processes[0].runs:
        return ""
    is_usual = cluster.directory == str(home.path / local.DIRECTORY_NAME)
    where = [] if is_usual else ["--dir", shlex.quote(cluster.directory)]
    return " ".join(["cachefs up", *where, *settings.connection_flags(chosen)])
