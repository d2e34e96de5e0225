"""The environment of the commands and servers of a test: nothing else of the machine is in it."""

from __future__ import annotations

import os
from pathlib import Path


def environment_of(home: str | Path) -> dict[str, str]:
    """Returns the environment of a user with this home.

    The servers of the tests show certificates of the tests' own authority, which commands and
    sources name. Each process that imports aiohttp loads the certificates that the machine trusts,
    which takes 50 ms of CPU time: the environment names none."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "SSL_CERT_FILE": os.devnull,
    }
