"""The log lines of pyfuse3 that a mount keeps."""

from __future__ import annotations

import errno
import logging
import os

from cachefs.fuse.pyfuse3_mount import is_awaited

LINE = "fuse_release(): fuse_reply_* failed with %s"


def line(number: int) -> logging.LogRecord:
    said = (os.strerror(number),)
    return logging.LogRecord("pyfuse3", logging.ERROR, __file__, 1, LINE, said, None)


def test_a_reply_that_an_unmount_made_useless_is_no_error() -> None:
    assert not is_awaited(line(errno.ENOENT))


def test_other_failed_replies_are_logged() -> None:
    assert is_awaited(line(errno.EINVAL))
    assert is_awaited(line(errno.EIO))
