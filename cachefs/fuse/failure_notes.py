"""Why no client can serve a held mount: one small file for each mount, in a directory beside that
of the mounts. A supervisor writes it, the driver of the node reads it. Without the directory (an
older driver) nothing is written.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from cachefs.core.errors import NotADirectory, NotFound
from cachefs.core.messages import Failure

log = logging.getLogger(__name__)

DIRECTORY: Final = "failures"
NO_DIRECTORY: Final = (NotFound.code, NotADirectory.code)  # no wait makes the mount answer


def write(place: str, failure: Failure) -> None:
    """Notes why a client could not serve the mount at a place. A failed write keeps the former
    note."""
    path = _path(place)
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_bytes(msgspec.json.encode(failure))
        new.replace(path)
    except FileNotFoundError:
        pass
    except OSError as err:
        log.warning("cannot note why %s is not served: %s", place, err)


def read(place: str) -> Failure | None:
    """Returns why the last client could not serve the mount at a place; None if that is not
    known."""
    try:
        return msgspec.json.decode(_path(place).read_bytes(), type=Failure)
    except (OSError, msgspec.DecodeError):
        return None


def lacks_directory(place: str) -> bool:
    """Returns whether the last client found no directory for the mount at a place."""
    failure = read(place)
    return failure is not None and failure.code in NO_DIRECTORY


def remove(place: str) -> None:
    """Forgets the failure of a mount. Idempotent."""
    with contextlib.suppress(OSError):
        _path(place).unlink()


def _path(place: str) -> Path:
    mounts, name = os.path.split(place)
    return Path(os.path.dirname(mounts), DIRECTORY, name)
