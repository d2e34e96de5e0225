"""What a server keeps in its directory of a state home, so that it can be found after its end.

    sources/<id>/kept.json              also clusters/<id>/nodes/<name>/kept.json

A server writes the document when it starts; the servers of earlier versions wrote none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cachefs.core.errors import CacheFSError
from cachefs.launcher.state import read_document, write_document

log = logging.getLogger(__name__)

KEPT_NAME: Final = "kept.json"


class Kept(msgspec.Struct, frozen=True):
    """The URL of what was served, and the cache directories of that server."""

    source: str
    cache_dirs: list[str]


def note(directory: Path, source: str, cache_dirs: Sequence[str]) -> None:
    """Writes what a server keeps in a directory, unless it is written there already. A server
    starts without it as well: only `cachefs cache` reads it."""
    kept = Kept(source, [*cache_dirs])
    try:
        if read(directory) != kept:
            write_document(directory, KEPT_NAME, msgspec.to_builtins(kept))
    except CacheFSError as err:
        log.info("cannot note what is kept here: %s", err)


def read(directory: Path) -> Kept | None:
    """Returns what was noted; None where nothing was, or it is torn or another user's."""
    try:
        return msgspec.convert(read_document(directory, KEPT_NAME), Kept)
    except msgspec.ValidationError:
        return None
