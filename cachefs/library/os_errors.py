"""The edge to Python programs: translates typed errors to the OSErrors that they expect."""

from __future__ import annotations

import errno
import os

from cachefs.core.errors import CacheFSError, DeadlineExceeded


def os_error(err: CacheFSError | OSError, path: bytes | str) -> OSError:
    """Returns an error as an OSError of the subclass of its errno (FileNotFoundError and so on),
    with the path as `filename` and the typed error as its cause."""
    name = os.fsdecode(path)
    if isinstance(err, OSError):
        if err.errno is None or err.filename == name:
            return err
        return _of_file(OSError(err.errno, err.strerror, name), err)  # not the cache's own name
    number = errno.ETIMEDOUT if isinstance(err, DeadlineExceeded) else err.errno
    text = f"{err.cause}; {err.remedy}" if err.remedy else err.cause
    return _of_file(OSError(number, text, name), err)


def _of_file(made: OSError, cause: Exception) -> OSError:
    made.__cause__ = cause
    return made
