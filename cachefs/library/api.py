"""`cachefs.open`, `cachefs.tree`, `cachefs.close`: what programs call. One `Library` a process."""

from __future__ import annotations

import functools
import io
import os
from typing import IO, Any, Final

from cachefs.core.errors import CacheFSError
from cachefs.library.cache_file import CacheFile
from cachefs.library.calls import call
from cachefs.library.library import Library
from cachefs.library.os_errors import os_error
from cachefs.library.tree import PathLike, Tree

BUFFER_BYTES: Final = 1 << 20  # one request, where the file is not complete on this node


@functools.cache
def library() -> Library:
    """Returns the library of this process."""
    return Library()


def tree(url: PathLike, **settings: Any) -> Tree:
    """Returns the names and files below a path on a mount, `cachefs://HOST:PORT/path` of a cluster,
    or `cachefs+s3://bucket/path`. `settings` are those of `cachefs mount`, and `source`, the URL of
    the source that a `cachefs+` URL is part of."""
    return Tree(os.fsdecode(url), settings, library)


def open(
    path: PathLike,
    mode: str = "rb",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    **settings: Any,
) -> IO[Any]:
    """Opens a file for reading, as the builtin `open` does. `path` and `settings`: see `tree`.
    With `buffering=0` returns a `CacheFile`. Raises OSError."""
    if "".join(sorted(mode)) not in ("r", "br", "rt"):
        raise ValueError(f"mode {mode!r}: files of CacheFS are read-only")
    raw = open_file(os.fsdecode(path), settings)
    if buffering == 0 and "b" in mode:
        return raw  # type: ignore[return-value]  # RawIOBase has the methods of IO
    buffered = io.BufferedReader(raw, buffering if buffering > 1 else BUFFER_BYTES)
    if "b" in mode:
        return buffered
    text = io.TextIOWrapper(buffered, encoding, errors, newline)
    text.mode = mode  # type: ignore[misc]  # as the builtin does
    return text


def open_file(path: str, settings: dict[str, Any]) -> CacheFile:
    """Opens a file unbuffered. Raises OSError."""
    try:
        located = call(library().locate, path, settings)
        return CacheFile(call(located.source.open, located.path), path, b"", settings)
    except (CacheFSError, OSError) as err:
        raise os_error(err, path) from err


def close() -> None:
    """Closes all connections to servers. Open files stay usable, and the next use connects
    again."""
    try:
        library().close()
    except CacheFSError as err:
        raise os_error(err, "") from err
