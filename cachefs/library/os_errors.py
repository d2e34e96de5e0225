"""The edge to Python programs: translates typed errors to the OSErrors that they expect."""

from __future__ import annotations

import errno
import os

from cachefs.core.errors import CacheFSError, DeadlineExceeded


def os_error(err: CacheFSError | OSError, path: bytes | str) -> OSError:
    """Returns an error as an OSError of the subclass of its errno (FileNotFoundError and so on),
    with the path as `filename` and the typed error as its cause."""
    if isinstance(err, OSError):
        return err
    number = errno.ETIMEDOUT if isinstance(err, DeadlineExceeded) else err.errno
    text = f"{err.cause}; {err.remedy}" if err.remedy else err.cause
    made = OSError(number, text, os.fsdecode(path))
    made.__cause__ = err
    return made
