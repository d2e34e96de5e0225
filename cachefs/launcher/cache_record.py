"""The record of a server's cache directories in its state directory, read after the server's end.

    sources/<id>/kept.json              also clusters/<id>/nodes/<name>/kept.json

A server writes the document when it starts; servers of earlier versions wrote none.
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


class CacheRecord(msgspec.Struct, frozen=True):
    """The URL of the served source, and the cache directories of that server."""

    source: str
    cache_dirs: list[str]


def note(directory: Path, source: str, cache_dirs: Sequence[str]) -> None:
    """Writes the document unless it is unchanged. Logs a failure, which does not stop the server:
    only `cachefs cache` reads the document."""
    kept = CacheRecord(source, [*cache_dirs])
    try:
        if read(directory) != kept:
            write_document(directory, KEPT_NAME, msgspec.to_builtins(kept))
    except CacheFSError as err:
        log.info("cannot write %s: %s", KEPT_NAME, err)


def read(directory: Path) -> CacheRecord | None:
    """Returns the document; None if it is missing, torn or another user's."""
    try:
        return msgspec.convert(read_document(directory, KEPT_NAME), CacheRecord)
    except msgspec.ValidationError:
        return None
