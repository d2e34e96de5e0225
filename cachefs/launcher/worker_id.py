"""The id of a worker in its cluster: a file `worker-id` in each tier; the first one found counts.
The id stays with the tiers, so that the worker that has them still owns the blocks in them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Sequence
from typing import Final

log = logging.getLogger(__name__)

NAME: Final = "worker-id"
_ID: Final = re.compile(r"[0-9a-f]{32}")


def read(directories: Sequence[str]) -> str:
    """Returns the id in the tiers, "" if none has one."""
    for directory in directories:
        with contextlib.suppress(OSError), open(os.path.join(directory, NAME), "rb") as file:
            text = file.read(64).decode("ascii", "replace").strip()
            if _ID.fullmatch(text):
                return text
    return ""


def draw() -> str:
    """Returns a new id."""
    return uuid.uuid4().hex


def write(directories: Sequence[str], id: str) -> None:
    """Writes the id to every tier. A tier that cannot be written gets it at a later start."""
    for directory in directories:
        path = os.path.join(directory, NAME)
        try:
            with open(f"{path}.new", "w", encoding="ascii") as file:
                file.write(f"{id}\n")
            os.rename(f"{path}.new", path)
        except OSError as err:
            log.warning("%s: the worker's id cannot be written: %s", directory, err.strerror)
