"""The environment of the commands and servers of a test: nothing else of the machine is in it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.services.cachefs_servers import EXECUTE


def environment_of(home: str | Path) -> dict[str, str]:
    """Returns the environment of a user with this home.

    The servers of the tests show certificates of the tests' own authority, which commands and
    sources name. Each process that imports aiohttp loads the certificates that the machine trusts,
    which takes 50 ms of CPU time: the environment names none.

    Where the tests' own environment has `EXECUTE`, commands execute the servers that they start."""
    executes = {EXECUTE: "1"} if EXECUTE in os.environ else {}
    return {
        **executes,
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "SSL_CERT_FILE": os.devnull,
    }
